"""The errors that the pack raises for invalid data and settings, and for caches that another process is using."""

from collections.abc import Sequence


class CacheError(ValueError):
    """A cache, or data to store in one, is invalid. The message gives the place, the problem and a remedy."""


class CacheBusy(CacheError):
    """Another process is using the cache: it is writing to it, or reading what was to be removed."""


class CacheUnreadable(CacheError):
    """A file of a cache cannot be read now: no permission, too many open files, a failing disk or network.

    What it contains is unknown. It may be intact, so nothing may be dropped or removed because of this error.
    """


class CacheUnreachable(CacheUnreadable):
    """A file at an address cannot be read now. It was tried for as long as makes sense."""


class LossRefused(CacheError):
    """A repair would drop more than a small share of the samples, which was not accepted. `samples` names them."""

    def __init__(self, message: str, samples: Sequence[tuple[int, str]]) -> None:
        super().__init__(message)
        self.samples = samples


class Unusable(CacheError):
    """One source file cannot be used. It is skipped and reported; the others are encoded."""


class SourceUnreadable(Unusable):
    """One source file cannot be read now: no permission, a failing disk, a drive that is not mounted.

    What it contains is unknown. A sample of the last generation must not leave the dataset silently because of it.
    """


class SettingError(CacheError):
    """A setting has the wrong type or is out of range. The message has the setting, its value and what is expected."""


class TrainError(ValueError):
    """A setting, dataset or model that cannot be trained as asked; the message says what to change."""
