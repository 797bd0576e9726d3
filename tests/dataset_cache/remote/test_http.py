"""Datasets on web servers: nginx as it comes, and a small server in Python where nginx is not installed."""

import gzip
from pathlib import Path

import pytest

from streamcache.dataset_cache import CacheError, open_cache, storage_at, usage, verify

from ...support.datasets import content, write_set
from ...support.remote_servers import NGINX, nginx_server, range_server

pytest.importorskip("obstore")  # Python 3.10 has none


@pytest.fixture(params=["python", pytest.param("nginx", marks=pytest.mark.skipif(not NGINX, reason="no nginx"))])
def pair(request, tmp_path):
    """A dataset on a web server, and the same in a folder."""
    folder = write_set(tmp_path / "www" / "my set", range(7))
    work = tmp_path / "nginx"
    server = range_server(tmp_path / "www") if request.param == "python" else nginx_server(tmp_path / "www", work)
    with server as address:
        yield f"http://{address}/my set", folder


def test_f4_a_dataset_on_a_web_server_is_read_as_from_a_folder(pair):
    address, folder = pair
    cache = open_cache(address, check=True)
    assert content(cache) == content(open_cache(folder)) and str(cache.path) == address
    assert list(verify(address)) == [] and usage(address).missing == ()


def test_a_web_server_is_read_only(pair):
    address, _ = pair
    with pytest.raises(CacheError, match="this kind of address is read-only; push to s3://"):
        storage_at(address).replace("file", b"")
    assert storage_at(address).list() == [], "it cannot be listed"


def test_what_is_missing_on_a_web_server_is_said(pair):
    address, folder = pair
    with pytest.raises(CacheError, match=f"^{address}-2: no such cache$"):
        open_cache(f"{address}-2")
    shard = sorted((folder / "shards").glob("s-*"))[0]
    shard.unlink()
    assert {problem.kind for problem in verify(address)} == {"missing"}


def test_f4_a_web_server_that_sends_only_whole_files_is_refused(tmp_path: Path):
    write_set(tmp_path / "set", range(3))
    whole = pytest.raises(CacheError, match="the server sends only whole files, and reading needs ranges; use")
    with range_server(tmp_path, ranges=False) as address, whole:
        open_cache(f"http://{address}/set")


def test_a_page_in_place_of_a_manifest_is_no_dataset(tmp_path: Path):
    (tmp_path / "dataset.json").write_bytes(gzip.compress(b"<html>not found</html>"))
    with range_server(tmp_path) as address, pytest.raises(CacheError, match="dataset.json: is not JSON"):
        open_cache(f"http://{address}")
