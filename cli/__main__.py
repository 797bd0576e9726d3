"""Entry point of `streamcache` and of `python -m streamcache.cli`; it runs before anything else is imported."""

import signal
import sys


def main() -> int:
    # Ctrl-C during the import of torch would crash with a dump: until then it just ends the program.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .main import main as run

    signal.signal(signal.SIGINT, before)
    return run()


if __name__ == "__main__":
    sys.exit(main())
