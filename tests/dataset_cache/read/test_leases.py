"""Leases: the heart that keeps them alive does not stop while readers come."""

import sys
import threading
from pathlib import Path

from streamcache.dataset_cache.read import leases
from streamcache.dataset_cache.read.leases import Lease


def test_new_readers_do_not_stop_the_heartbeat(tmp_path: Path):
    kept = [Lease(tmp_path, "0" * 32) for _ in range(50)]
    stop, errors = threading.Event(), []

    def beat() -> None:
        try:
            while not stop.is_set():
                leases._beat_all()
        except RuntimeError as error:  # the set of leases changed its size
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    heart = threading.Thread(target=beat)
    heart.start()
    try:
        kept += [Lease(tmp_path, "0" * 32) for _ in range(500)]
    finally:
        stop.set()
        heart.join()
        sys.setswitchinterval(interval)
    assert not errors and len(kept) == 550
