"""Child processes for the tests: a nursery imports the package once, and forks one child per task.

A child tells what it did in a log file, line by line, which stays true when it is killed at any moment.
"""

import contextlib
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
ROOT = Path(__file__).resolve().parents[2]


class Child:
    """A forked process, as its parent's parent sees it."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid, self._log = pid, log

    def notes(self) -> list[list[Any]]:
        """What the child noted so far. A line that is not finished yet is left out."""
        text = self._log.read_text(encoding="utf-8") if self._log.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def wait_for(self, what: str, seconds: float = 60) -> list[Any]:
        return next(note for note in self._watch(seconds) if note[0] == what)

    def wait(self, seconds: float = 60) -> list[list[Any]]:
        """Wait until it is gone; returns all of its notes."""
        end = time.monotonic() + seconds
        while self.lives() and time.monotonic() < end:
            time.sleep(0.002)
        assert not self.lives(), f"process {self.pid} hangs after {self.notes()[-3:]}"
        return self.notes()

    def kill(self) -> list[list[Any]]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def lives(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def _watch(self, seconds: float) -> Iterator[list[Any]]:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            lives = self.lives()
            yield from self.notes()
            assert lives, f"process {self.pid} ended with {self.notes()[-3:]}"
            time.sleep(0.002)
        raise AssertionError(f"process {self.pid} hangs after {self.notes()[-3:]}")


class Nursery:
    """Starts children. Use it in `with`; what still lives then is killed."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._children = folder, []
        # Threads of torch would not survive a fork.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def start(self, role: Callable[..., None], *args: Any) -> Child:
        log = self._folder / f"log {len(self._children)}"
        log.touch()
        log.chmod(0o666)
        print(json.dumps([role.__name__, str(log), *[str(a) if isinstance(a, Path) else a for a in args]]),
              file=self._process.stdin, flush=True)  # fmt: skip
        child = Child(int(self._process.stdout.readline()), log)
        self._children.append(child)
        return child

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(self, *_: Any) -> None:
        for child in self._children:
            if child.lives():
                child.kill()
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


Note = Callable[..., None]


def hold(note: Note, path: str) -> None:
    """Opens a writer and keeps it."""
    from streamcache.dataset_cache import CacheWriter

    with CacheWriter(path):
        note("open")
        time.sleep(600)


def build(note: Note, path: str, total: int, flush_every: int, publish_every: int) -> None:
    """Adds what a dataset lacks of `total` samples, telling what is durable and what is published."""
    from streamcache.dataset_cache import CacheWriter, open_cache
    from streamcache.dataset_cache.write.repack import merge_small

    samples = load_samples()
    merge_small.__globals__["SMALL_SHARDS"] = 3
    first = len(open_cache(path)) if Path(path, "dataset.json").exists() else 0
    with CacheWriter(path, append=True) as w:
        note("open", first, w.recovered_entries)
        for i in range(first, total):
            samples.put_sample(w, i)
            note("put", i)
            if flush_every and i % flush_every == flush_every - 1:
                w.flush()
                note("durable", i)
            if publish_every and i % publish_every == publish_every - 1:
                note("publishing", i)
                w.publish()
                note("published", i)
    note("done")


def build_until(note: Note, path: str, total: int, flush_every: int, publish_every: int, last: int) -> None:
    """As `build`, but this process kills itself in its `last` call that changes a file or a folder."""
    write = _end_after(last)
    build(lambda *facts: note(*facts, write=write), path, total, flush_every, publish_every)


def _end_after(last: int) -> Callable[..., Any]:
    """From now on, the call number `last` that changes a file or a folder kills this process. Returns os.write."""
    steps = iter(range(last))

    def counted(call: Callable[..., Any], is_write: bool) -> Callable[..., Any]:
        def step(*args: Any, **options: Any) -> Any:
            if next(steps, None) is None:
                if is_write:  # in the middle of it
                    call(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **options)

        return step

    write = os.write
    for name in ("write", "fsync", "replace", "unlink", "ftruncate", "mkdir", "rmdir", "open"):
        setattr(os, name, counted(getattr(os, name), name == "write"))
    return write


def read_in_forks(note: Note, path: str, forks: int, rounds: int) -> None:
    """Opens a dataset, forks, and reads it in every process at once; notes who found everything as it was given."""
    from streamcache.dataset_cache import open_cache
    from streamcache.dataset_cache.read.leases import holders

    samples = load_samples()
    cache = open_cache(path, check=True)
    cache[0].realize()  # handles are open
    lazy = cache[1].latent["samples"]

    def read(name: str) -> None:
        for _ in range(rounds):
            samples.assert_holds(cache, range(len(cache)))
            assert samples.same(lazy, samples.latent(1)["samples"])
            cache.read_batch([0])
        note(name, os.getpid())

    children = []
    for _ in range(forks):
        pid = os.fork()
        if not pid:
            try:
                read("child")
            except BaseException as error:
                note("failed", repr(error))
            os._exit(0)
        children.append(pid)
    read("parent")
    note("holders", sorted(holder.pid for holder in holders(Path(path))))
    for pid in children:
        os.waitpid(pid, 0)
    note("left", sorted(holder.pid for holder in holders(Path(path))))


def write_large(note: Note, path: str, count: int, numbers: int) -> None:
    """Writes `count` samples of `numbers` floats each and notes how much memory that took at its peak."""
    import torch

    from streamcache.dataset_cache import CacheWriter

    def peak() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

    with CacheWriter(path) as w:
        w.add(thing=torch.rand(numbers))
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        before = peak()
        for _ in range(count):
            w.add(thing=torch.rand(numbers))
        w.publish()
    note("peak", peak() - before)


def fill_small_files(note: Note, path: str, largest: int, count: int) -> None:
    """Writes samples while no file may grow beyond `largest` bytes; notes what the writer said of that."""
    import resource

    from streamcache.dataset_cache import CacheWriter

    samples = load_samples()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
    try:
        with CacheWriter(path) as w:
            for i in range(count):
                samples.put_sample(w, i)
                w.flush()
                note("durable", i)
    except ValueError as error:
        note(type(error).__name__, str(error))
    else:
        note("done")


def read_and_write(note: Note, path: str) -> None:
    """As a user without permissions, opens a cache to read and to write, and notes the results."""
    from streamcache.dataset_cache import CacheWriter, open_cache

    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    for what, use in (("read", lambda: [s.realize() for s in open_cache(path)]), ("write", lambda: CacheWriter(path))):
        try:
            use()
        except Exception as error:
            note(what, type(error).__name__, str(error))
        else:
            note(what, "done", "")


def edit_captions(note: Note, folder: str, state: str, find: str, by: str, last: int = 0) -> None:
    """Replaces a text in all captions of a folder. With `last`, this process kills itself as `build_until` does."""
    from streamcache.dataset_cache.curate import SourceFolder, apply_changes, preview_edit, replace_text

    os.environ["STREAMCACHE_STATE_DIR"] = state
    view = SourceFolder(folder).read()
    changes = preview_edit(view, [image.name for image in view.images], replace_text(find, by)).changes
    note("ready", len(changes))
    write = _end_after(last) if last else os.write
    done = apply_changes(view, changes)
    note("done", done.changed, [conflict.name for conflict in done.conflicts], write=write)


def undo_edits(note: Note, folder: str, state: str, last: int) -> None:
    """Undoes the last edits of a folder, and kills itself as `build_until` does."""
    from streamcache.dataset_cache.curate import undo_edit

    os.environ["STREAMCACHE_STATE_DIR"] = state
    write = _end_after(last)
    undo_edit(Path(folder))
    note("done", write=write)


def edit_as_another_user(note: Note, folder: str, state: str) -> None:
    """As a user without permissions, sets captions and choices of a folder, and notes what was refused."""
    from streamcache.dataset_cache.curate import CaptionChange, SourceFolder, apply_changes, choose_images

    os.environ["STREAMCACHE_STATE_DIR"] = f"{state}/root"
    SourceFolder(folder).read()  # imports what the other user may not read
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    os.environ["STREAMCACHE_STATE_DIR"] = f"{state}/another"
    view = SourceFolder(folder).read()
    note("locked", {image.name: image.caption.locked for image in view.images})
    done = apply_changes(view, [CaptionChange(i.name, i.caption.text, "x", i.caption.stamp) for i in view.images])
    note("captions", done.changed, done.refused)
    done = choose_images(view, [image.name for image in view.images], excluded=True)
    note("choices", done.changed, done.refused)


def read_ahead(note: Note, path: str, address: str, copies: str, limit: int, seed: int) -> None:
    """Trains on a dataset behind a server: reads batches in a known order, and tells if one is wrong."""
    os.environ["STREAMCACHE_CACHE_DIR"] = copies
    from streamcache.dataset_cache import open_cache, use_cache_limit
    from streamcache.tests.support.served import open_served

    use_cache_limit(limit)
    local, cache = open_cache(path), open_served(Path(path), address)
    draw = random.Random(seed)
    order = [i for _ in range(20) for i in draw.sample(range(len(cache)), len(cache))]
    cache.coming(([i], {}) for i in order)
    note("open")
    for i in order:
        right = cache.read_batch([i]).latents.equal(local.read_batch([i]).latents)
        note("read" if right else "wrong", i)
    cache.close()
    note("done")


def travel_until(note: Note, what: str, near: str, far: str, last: int) -> None:
    """Pushes or pulls, and kills itself as `build_until` does, in whatever thread."""
    from streamcache.dataset_cache.travel import carrying, pull, push

    carrying.PART_BYTES = 2000
    write = _end_after(last)
    (push if what == "push" else pull)(near, far)
    note("done", write=write)


TASKS = (hold, build, build_until, read_in_forks, write_large, fill_small_files, read_and_write)
TASKS += (edit_captions, undo_edits, edit_as_another_user, read_ahead, travel_until)
ROLES = {role.__name__: role for role in TASKS}


def load_samples() -> Any:
    return load_file("samples", Path(__file__).with_name("samples.py"))


def load_file(name: str, path: Path, folders: list[str] | None = None) -> Any:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=folders)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def run_role(order: list[Any]) -> None:
    role, log, *args = order
    fd = os.open(log, os.O_WRONLY | os.O_APPEND)

    def note(*facts: Any, write: Callable[..., int] = os.write) -> None:
        write(fd, (json.dumps(facts) + "\n").encode())

    ROLES[role](note, *args)


def main() -> None:
    load_file("streamcache", ROOT / "__init__.py", [str(ROOT)])
    load_samples()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the parent does not wait for its children
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            code = 1
            try:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                run_role(json.loads(line))
                code = 0
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(code)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
