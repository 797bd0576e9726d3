"""The program `streamcache`, also as `python -m streamcache.cli`: its start, before anything else is imported."""

import signal
import sys


def main() -> int:
    # An interrupt inside the import of torch ends in a crash with a dump: until then Ctrl-C just ends the program.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .main import main as run

    signal.signal(signal.SIGINT, before)
    return run()


if __name__ == "__main__":
    sys.exit(main())
