"""Fixtures of the unit tests: a temporary memory folder, images on disk, other platforms, child processes."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from .encoders import CountingImages, CountingTexts
from .platforms import HERE, WINDOWS, play
from .processes import Nursery
from .remote_servers import s3_server


@pytest.fixture(autouse=True)
def state_dir(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test touches the user's own state, or uses the user's credentials."""
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("STREAMCACHE_STATE_DIR", str(folder))
    monkeypatch.setenv("STREAMCACHE_CACHE_DIR", str(folder / "copies"))
    for name in [name for name in os.environ if name.startswith(("AWS_", "HF_"))]:
        monkeypatch.delenv(name)
    return folder


@pytest.fixture
def images() -> CountingImages:
    return CountingImages()


@pytest.fixture
def texts() -> CountingTexts:
    return CountingTexts()


@pytest.fixture
def picture(tmp_path: Path) -> Callable[..., Path]:
    """Write an image with unique pixels: picture("set/a.png", size=(64, 48), caption="a cat")."""

    def write(name: str, size: tuple[int, int] = (64, 64), seed: int | None = None, caption: str | None = None) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draw = np.random.default_rng(abs(hash_of(name)) if seed is None else seed)
        small = draw.integers(0, 255, (max(1, size[1] // 8), max(1, size[0] // 8), 3), dtype=np.uint8)
        Image.fromarray(small).resize(size, Image.Resampling.NEAREST).save(path)
        if caption is not None:
            path.with_suffix(".txt").write_text(caption, encoding="utf-8")
        return path

    return write


@pytest.fixture(params=[HERE, WINDOWS])
def platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a test twice: with what this system has, and with what Windows has."""
    play(request.param, monkeypatch)
    return request.param


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Starts processes that can be killed."""
    with Nursery(tmp_path_factory.mktemp("children")) as nursery:
        yield nursery


def hash_of(name: str) -> int:
    return int.from_bytes(name.encode()[-8:], "little")


def settle() -> None:
    """Wait until the clock has moved on, so that files written before are known by their times."""
    time.sleep(0.05)


def touch(path: Path) -> None:
    """Another time, the same content."""
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000_007))


@pytest.fixture(scope="session")
def s3_address() -> Iterator[str]:
    """The `host:port` of a real S3 server with one bucket, for the whole run."""
    with s3_server() as address:
        yield address


@pytest.fixture
def s3(s3_address: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Addresses of S3 lead to that server, with credentials in the environment."""
    pytest.importorskip("obstore")  # Python 3.10 has none
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{s3_address}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "planted-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-secret")
    return s3_address
