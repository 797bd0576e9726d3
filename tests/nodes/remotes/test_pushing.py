"""Where a node may push to: a registered root, by its name, and nothing else."""

from pathlib import Path

import pytest

from streamcache.dataset_cache import CacheError, storage_at
from streamcache.nodes.library import DatasetHandle, Saved, remote_place
from streamcache.nodes.remotes import NO_ROOT, push_saved, push_target, root_names

from ...support.datasets import write_set
from ...support.fault_proxy import FaultProxy

ADDRESSES = [
    "http://169.254.169.254/latest/meta-data",
    "http:/169.254.169.254/latest",
    "s3://bucket/my_set",
    "https://127.0.0.1:8188/x",
    "//10.0.0.1/share/set",
    "\\\\10.0.0.1\\share\\set",
    "file:///etc",
    "169.254.169.254/latest",
    "localhost/set",
    "[::1]/set",
]
ESCAPES = [
    *("studio/../other", "studio/..", "../studio/x", "studio//x", "studio/./x", "studio/", "/studio/x"),
    *("studio/a/../../../x", "studio\\..\\..\\x", "studio/\x00", "studio/x?y", "studio/x\ny", "studio/\ud800"),
    *("studio/http://169.254.169.254", "studio/a:b", "studio/.hidden", "studio", "STUDIO/x"),
]


@pytest.mark.parametrize("text", [*ADDRESSES, *ESCAPES])
def test_f7_what_is_not_below_a_registered_root_is_refused(proxy: FaultProxy, text: str):
    with pytest.raises(CacheError):
        remote_place(text)
    assert proxy.seen == [], "nothing was asked"


@pytest.mark.parametrize("text", ["%2e%2e", "%2E%2E%2Fother", "..%2f", "%252e%252e", "a%00b"])
def test_f7_encoded_forms_stay_below_the_root(proxy: FaultProxy, text: str):
    root, place = remote_place("studio/x"), None
    try:
        place = remote_place(f"studio/{text}")
    except CacheError:
        return
    assert str(place).startswith(str(root).removesuffix("x")) and place.path.count("/") == root.path.count("/")
    storage_at(place).exists()
    prefix = root.path.removesuffix("/x")
    assert proxy.seen and all(prefix in seen.path for seen in proxy.seen), "one more part below the root"


@pytest.mark.parametrize(
    "root", ["elsewhere", "studio/..", "http://169.254.169.254", "s3://bucket", "..", "studio/deep"]
)
def test_f7_a_node_pushes_to_registered_roots_only(proxy: FaultProxy, root: str):
    with pytest.raises(CacheError):
        push_target(root, "my_set")


def test_a_root_is_chosen_by_name(proxy: FaultProxy):
    assert str(push_target("studio", "studio/cats")) == str(push_target("studio", "cats")), "where it was pulled from"
    assert root_names() == ["studio"] and push_target(NO_ROOT, "my_set") is None
    assert str(push_target("studio", "group/my_set")).endswith("/group/my_set")
    assert str(remote_place("studio/group/my_set")) == str(push_target("studio", "group/my_set"))


def test_a_push_that_fails_says_that_the_cache_is_saved_and_why_it_is_not_there(proxy: FaultProxy, tmp_path: Path):
    path, target = write_set(tmp_path / "group/my_set", range(2)), push_target("studio", "group/my_set")
    assert target is not None
    proxy.fault = lambda seen, number: 403
    saved = Saved(DatasetHandle("group/my_set", path, "0" * 32), (), {})
    reason = r"not pushed: s3://.*group/my_set/dataset\.json: access was denied"
    with pytest.raises(CacheError, match=rf"^saved here as group/my_set, {reason}"):
        push_saved(saved, "group/my_set", path, target, lambda *progress: None)
