"""Writes the golden dataset of the current format: once, when the format is released, and never over a released one."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

import tests.conftest  # noqa: E402, F401 - it registers the package
from streamcache.dataset_cache import register_codec  # noqa: E402
from streamcache.dataset_cache.format.manifest import FORMAT  # noqa: E402
from tests.support import golden  # noqa: E402

if __name__ == "__main__":
    target = HERE / f"format-{FORMAT}"
    if target.exists():
        sys.exit(f"{target} exists: a released format never changes")
    register_codec(golden.CODEC)
    golden.write_golden(target)
    (target / ".lock").unlink(missing_ok=True)
    print(f"Wrote {target}")
