"""Settings: how large a run is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """The full run; `QUICK` is for seeing that everything works, its numbers mean little."""

    samples: int = 2000
    batches: int = 60
    rounds: int = 15
    written: int = 2048
    write_rounds: int = 7
    shared_samples: int = 4000
    shared_captions: int = 200
    indexed: int = 1_000_000
    opens: int = 15
    visited: int = 10_000
    files: int = 100_000
    scan_rounds: int = 7
    encoded: int = 100
    encode_rounds: int = 6
    host_rounds: int = 5


QUICK = Settings(
    samples=24,
    batches=3,
    rounds=5,
    written=8,
    write_rounds=5,
    shared_samples=200,
    shared_captions=10,
    indexed=10_000,
    opens=5,
    visited=200,
    files=200,
    scan_rounds=5,
    encoded=8,
    encode_rounds=5,
    host_rounds=1,
)
