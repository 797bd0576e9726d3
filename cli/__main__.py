"""Entry point of `streamcache` and of `python -m streamcache.cli`; it runs before anything else is imported."""

import signal
import sys


def main() -> int:
    # Ctrl-C during the import of torch would crash with a dump: until the command begins it just ends the program.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .main import execute, parse

    try:
        args = parse()
    except ModuleNotFoundError as error:
        print(_explain(error), file=sys.stderr)
        return 1

    signal.signal(signal.SIGINT, before)
    return execute(args)


def _explain(error: ModuleNotFoundError) -> str:
    """A package is missing. Usually this is not the Python that ComfyUI runs in."""
    return (
        f"streamcache: this Python ({sys.executable}) lacks the package {error.name}; "
        "use ComfyUI's Python, or install torch and then the packages of requirements.txt"
    )


if __name__ == "__main__":
    sys.exit(main())
