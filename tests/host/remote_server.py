"""A ComfyUI server with the registered root `studio`, on a real S3 server behind a proxy."""

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streamcache import dev
from streamcache.tests.support.fault_proxy import FaultProxy
from streamcache.tests.support.remote_servers import s3_server
from streamcache.tests.support.s3_roots import SECRET, registered_root

from .server import Server, install_pack, start_server
from .tiny_models import write_models

STUDIO = "s3://bucket/sets"


@contextmanager
def server_with_root(host: dev.Host, base: Path, *options: str) -> Iterator[tuple[Server, FaultProxy]]:
    """ComfyUI's Python finds obstore where these tests have it."""
    found = importlib.util.find_spec("obstore")
    if found is None or found.origin is None:
        pytest.skip("needs obstore: pip install obstore")
    shutil.copytree(Path(found.origin).parent, base / "packages" / "obstore")
    write_models(base / "models")
    install_pack(base)
    state_of(base).mkdir(parents=True)
    with s3_server() as s3, registered_root(s3, state_of(base), "sets") as proxy, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(base / "packages"))
        server = start_server(host, base, *options)
        try:
            yield server, proxy
        finally:
            server.stop()


def state_of(base: Path) -> Path:
    return base / "user" / "__streamcache"


def use_state_of(server: Server, patch: pytest.MonkeyPatch) -> None:
    """The test itself reaches the root too, as the server does."""
    patch.setenv("STREAMCACHE_STATE_DIR", str(state_of(server.base)))
    patch.setenv("AWS_ACCESS_KEY_ID", "key")
    patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
