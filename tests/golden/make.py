"""Writes the golden datasets of the current format and of its features: once, when they are released, and never over
released ones."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

import tests.conftest  # noqa: E402, F401 - it registers the package
from streamcache.dataset_cache import register_codec  # noqa: E402
from streamcache.dataset_cache.format.manifest import FORMAT  # noqa: E402
from tests.support import golden  # noqa: E402

if __name__ == "__main__":
    register_codec(golden.CODEC)
    writers = {
        f"format-{FORMAT}": golden.write_golden,
        f"format-{FORMAT}-segments": golden.write_golden_in_parts,
        "padding": golden.write_trimmed,
    }
    for name, write in writers.items():
        target = HERE / name
        if target.exists():
            print(f"{target} exists: a released format never changes")
            continue
        write(target)
        (target / ".lock").unlink(missing_ok=True)
        print(f"Wrote {target}")
