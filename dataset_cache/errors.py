"""The errors this layer raises for bad data, and for data that somebody else holds."""


class CacheError(ValueError):
    """A cache, or what is to be stored in one, is not as it must be. The message says where, what, and what to do."""


class CacheBusy(CacheError):
    """Somebody else holds the cache: another publisher, or readers of what was to be removed."""


class Unusable(CacheError):
    """One source file cannot be used. It is left out and reported; the rest goes on."""


class SettingError(ValueError):
    """A setting has the wrong type or is outside its limits. The message names setting, value and what is expected."""
