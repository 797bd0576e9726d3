"""The registered root `studio` on a real S3 server, reached through a proxy."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .fault_proxy import FaultProxy, fault_proxy
from .remote_servers import BUCKET

SECRET = "very secret words"


@contextmanager
def registered_root(server: str, state: Path, below: str = "", name: str = "studio") -> Iterator[FaultProxy]:
    """`remotes.toml` in the folder of states. Credentials are where S3's own tools look for them."""
    with pytest.MonkeyPatch.context() as patch, fault_proxy(server) as proxy:
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        patch.setenv("STREAMCACHE_CACHE_DIR", str(state / "copies"))
        address = f"s3://{BUCKET}/{below}".rstrip("/")
        text = f'[roots.{name}]\naddress = "{address}"\nendpoint = "http://{proxy.address}"\nregion = "us-east-1"\n'
        (state / "remotes.toml").write_text(text)
        yield proxy
