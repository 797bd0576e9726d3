"""What an encode run loses when its process ends early, as docs/encoding.md says, with real processes and signals."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
COUNT, BATCH = 24, 2
pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")]

# Encodes with the command line. Each batch takes a while, as on a real model, and is announced when it is done. After
# the given number of images, the encoder hangs.
ENCODE = f"""
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits that it is ignored,
for number in (signal.SIGHUP, signal.SIGTERM):  # and one under nohup that these are
    signal.signal(number, signal.SIG_DFL)
sys.path.insert(0, {str(ROOT)!r})
import tests.conftest
from streamcache.cli.main import main
from streamcache.reference import ReferenceImageEncoder

real = ReferenceImageEncoder.encode
def encode(self, items):
    global left
    made = real(self, items)
    left -= len(items)
    time.sleep(1000 if left < 0 else 0.2)
    print("encoded", len(items), flush=True)
    return made
left = int(sys.argv[1])
ReferenceImageEncoder.encode = encode
sys.exit(main(sys.argv[2:]))
"""

# As above, on a disk that is full after some images and then gets more room.
FULL = f"""
import json, os, subprocess, sys
sys.path.insert(0, {str(ROOT)!r})
import tests.conftest
from streamcache.dataset_cache import CacheError, CacheWriter, FolderSource, Settings, Transform, encode, make_plan
from streamcache.dataset_cache.encode import pipeline
from tests.support.encoders import CountingImages, CountingTexts

source, disk = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1200k", "none", disk], check=True)
os.environ["STREAMCACHE_STATE_DIR"] = disk + "-state"
class Large(CountingImages):
    def make(self, item):
        return {{"samples": super().make(item)["samples"].repeat(1, 8, 1, 1).contiguous()}}
images, texts = Large(), CountingTexts()
pipeline._FLUSH_SHARE = float("inf")  # every batch is an interval, however fast the machine is
stored = durable = 0  # latents
put, flush = CacheWriter.put, CacheWriter.flush
def count_stored(self, key, structure, field):
    global stored
    put(self, key, structure, field)
    stored += field == "latent"
def count_durable(self):
    global durable
    flush(self)
    durable = stored
CacheWriter.put, CacheWriter.flush = count_stored, count_durable
def run():
    settings = Settings(Transform((256,), step=8), batch_size=2, thumbnail=0)
    plan = make_plan(FolderSource(source), image_encoder=images, text_encoder=texts, settings=settings)
    return encode(plan, disk + "/cache")
try:
    run()
    print(json.dumps({{"error": ""}}))
except CacheError as error:
    first, flushed = images.count, durable
    subprocess.run(["mount", "-o", "remount,size=100m", disk], check=True)
    images.reset()
    report = run()
    facts = {{"first": first, "flushed": flushed, "again": images.count, "samples": report.samples}}
    print(json.dumps({{"error": str(error), **facts}}))
"""


@pytest.fixture
def source(tmp_path) -> Path:
    folder = tmp_path / "set"
    folder.mkdir()
    for n in range(COUNT):
        pixels = np.random.default_rng(n).integers(0, 255, (64, 64, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{n:02}.png")
    return folder


def start(tmp_path: Path, source: Path, images: int = COUNT) -> subprocess.Popen:
    command = [sys.executable, "-c", ENCODE, str(images), "encode", source, "--to", tmp_path / "cache", "--reference"]
    command += ["--resolution", "64", "--batch-size", str(BATCH), "--json"]
    environment = {"STREAMCACHE_STATE_DIR": str(tmp_path / "state"), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [str(part) for part in command],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(child: subprocess.Popen, images: int) -> int:
    """Wait until this many images are encoded; the number that was announced."""
    done = 0
    assert child.stdout is not None
    while done < images:
        line = child.stdout.readline()
        assert line, child.communicate(timeout=60)[1]
        done += int(line.split()[1]) if line.startswith("encoded") else 0
    return done


def encoded_by(child: subprocess.Popen) -> int:
    """The number of images that a run encodes until it ends well."""
    out, errors = child.communicate(timeout=240)
    assert child.returncode == 0, errors
    return sum(int(line.split()[1]) for line in out.splitlines() if line.startswith("encoded"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_ends_the_command_loses_at_most_the_batch_in_the_encoder(tmp_path, source, number):
    child = start(tmp_path, source)
    done = wait_for(child, 8)
    child.send_signal(number)
    rest, errors = child.communicate(timeout=240)
    done += sum(int(line.split()[1]) for line in rest.splitlines() if line.startswith("encoded"))
    assert child.returncode == 130 and "Encoded entries are kept" in errors
    assert encoded_by(start(tmp_path, source)) <= COUNT - done + BATCH
    assert done < COUNT


def test_a_second_signal_does_not_disturb_the_saving(tmp_path, source):
    child = start(tmp_path, source)
    done = wait_for(child, 8)
    for _ in range(20):
        child.send_signal(signal.SIGTERM)
    child.communicate(timeout=240)
    assert child.returncode == 130
    assert encoded_by(start(tmp_path, source)) <= COUNT - done + BATCH


def durable_latents(cache: Path) -> int:
    """The number of latents in journals, which a later run finds."""
    return sum(file.read_bytes().count(b'"field":"latent"') for file in cache.glob(".build/*/journal"))


def test_a_kill_loses_nothing_that_was_stored_half_a_minute_ago(tmp_path, source):
    """Also if no further entry is stored meanwhile, because the encoder is slow or hangs."""
    child = start(tmp_path, source, 8)
    done = wait_for(child, 8)
    limit = time.monotonic() + 120
    while durable_latents(tmp_path / "cache") < done and time.monotonic() < limit:
        time.sleep(0.05)
    child.kill()
    child.communicate(timeout=240)
    assert encoded_by(start(tmp_path, source)) == COUNT - done


def _can_mount(folder: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    mount = f"mount -t tmpfs -o size=1m none {folder}"
    return subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True).returncode == 0


def test_a_full_disk_loses_at_most_what_came_after_the_last_interval(tmp_path, source):
    disk = tmp_path / "disk"
    disk.mkdir()
    if not _can_mount(disk):
        pytest.skip("needs unshare and tmpfs")
    command = ["unshare", "-rm", sys.executable, "-c", FULL, str(source), str(disk)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    assert "No space left on device" in facts["error"] and facts["samples"] == COUNT
    assert 0 < facts["first"] < COUNT
    assert facts["flushed"] > 0 and facts["again"] <= COUNT - facts["flushed"]
