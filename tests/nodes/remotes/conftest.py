"""The registered root `studio` on an S3 server, with a prefix of its own for each test."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from ...support.fault_proxy import FaultProxy
from ...support.remote_servers import s3_server
from ...support.s3_roots import registered_root


@pytest.fixture(scope="package")
def s3() -> Iterator[str]:
    pytest.importorskip("obstore")
    with s3_server() as address:
        yield address


@pytest.fixture
def proxy(s3: str, state_dir: Path) -> Iterator[FaultProxy]:
    with registered_root(s3, state_dir, secrets.token_hex(4)) as proxy:
        yield proxy
