"""The errors that this layer raises for invalid data and for caches that another process is using."""


class CacheError(ValueError):
    """A cache, or data to store in one, is invalid. The message gives the place, the problem and a remedy."""


class CacheBusy(CacheError):
    """Another process is using the cache: it is writing to it, or reading what was to be removed."""


class Unusable(CacheError):
    """One source file cannot be used. It is skipped and reported; the others are encoded."""


class SettingError(ValueError):
    """A setting has the wrong type or is out of range. The message has the setting, its value and what is expected."""
