"""`python -m streamcache`, also as `torchrun … -m streamcache train …`."""

import sys

from .cli.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
