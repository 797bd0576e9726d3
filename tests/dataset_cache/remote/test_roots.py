"""The user's file of registered roots: names for addresses, and nothing that is secret."""

import pytest

from streamcache.dataset_cache import CacheError, resolve, roots, storage_at
from streamcache.dataset_cache.address import Address
from streamcache.dataset_cache.remote.roots import Options, options_for

FILE = """
[roots.studio]
address = "s3://bucket/sets/"
endpoint = "http://127.0.0.1:9000"
region = "eu-central-1"

[roots.open]
address = "s3://bucket/sets/open"
anonymous = true
"""


@pytest.fixture
def file(state_dir):
    path = state_dir / "remotes.toml"
    path.write_text(FILE)
    return path


def test_without_a_file_there_are_no_roots(state_dir):
    assert roots() == {} and options_for(Address.parse("s3://bucket/set")) == Options()
    with pytest.raises(CacheError, match="no remote root has the name 'studio'; registered in .*remotes.toml: none"):
        resolve("studio/set")


def test_a_name_and_a_path_below_it_are_an_address(file):
    assert roots() == {"studio": "s3://bucket/sets", "open": "s3://bucket/sets/open"}
    assert resolve("studio/a/my set") == "s3://bucket/sets/a/my set" and resolve("open") == "s3://bucket/sets/open"


@pytest.mark.parametrize(
    "place",
    ["studio/../other", "studio//a", "studio/a/../../b", "s3://bucket/a", "", "studio/a?b", "studio/%2e%2e/b"],
)
def test_f7_a_widget_cannot_leave_a_root(file, place):
    with pytest.raises(CacheError):
        resolve(place)


def test_options_are_those_of_the_innermost_root(file):
    assert options_for(Address.parse("s3://bucket/sets/a")) == Options("http://127.0.0.1:9000", "eu-central-1")
    assert options_for(Address.parse("s3://bucket/sets/open/a")) == Options(anonymous=True)
    assert options_for(Address.parse("s3://bucket/sets-2")) == Options()


def test_a_registered_endpoint_is_used(s3, state_dir, monkeypatch, tmp_path):
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    (state_dir / "remotes.toml").write_text(
        f'[roots.here]\naddress = "s3://bucket/{tmp_path.name}"\nendpoint = "http://{s3}"'
    )
    storage_at(resolve("here/a")).replace("file", b"abc")
    assert storage_at(resolve("here/a")).list() == ["file"]


@pytest.mark.parametrize(
    ("text", "message"),
    [("[roots.a]\naddress = 's3://b/c'\nsecret_access_key = 'hunter2'", "Credentials do not belong here"),
     ("[roots.a]\naddress = 's3://anna:hunter2@b/c'", "give credentials in the environment"),
     ("[roots.a]\naddress = 's3://b/c'\nendpoint = 'https://anna:hunter2@host'", "give credentials in the environment"),
     ("[roots.a]\naddress = 's3://b/c'\nanonymous = 'yes'", "anonymous must be a true or false"),
     ("[roots.a]", "has no address"), ("roots = 3", "expected tables"), ("[other]", "contains 'other'"),
     ("[roots.'a/b']\naddress = 's3://b/c'", "is not a name"), ("hunter2", "is not TOML")],
)  # fmt: skip
def test_f7_what_is_wrong_in_the_file_is_said_without_repeating_secrets(state_dir, text, message):
    (state_dir / "remotes.toml").write_text(text)
    with pytest.raises(CacheError, match=message) as raised:
        roots()
    assert "remotes.toml" in str(raised.value) and "hunter2" not in str(raised.value)
