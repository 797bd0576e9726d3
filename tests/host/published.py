"""The files of the published zip: all files in git except those that .comfyignore excludes."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def published_files() -> list[str]:
    """Paths relative to the repository's root. The registry's tool reads .comfyignore as git reads .gitignore."""
    known = _git("ls-files", "--cached", "--others", "--exclude-standard")
    ignored = _git("ls-files", "--cached", "--others", "--ignored", "--exclude-from", ".comfyignore")
    return sorted(name for name in set(known) - set(ignored) if (ROOT / name).is_file())


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments, "-z"], cwd=ROOT, capture_output=True, check=True)
    return [name for name in done.stdout.decode().split("\0") if name]
