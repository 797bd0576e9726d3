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
    targets = {HERE / f"format-{FORMAT}": golden.write_golden, HERE / "padding": golden.write_trimmed}
    new = {target: write for target, write in targets.items() if not target.exists()}
    if not new:
        sys.exit(f"{', '.join(map(str, targets))} exist: a released format never changes")
    for target, write in new.items():
        write(target)
        (target / ".lock").unlink(missing_ok=True)
        print(f"Wrote {target}")
