"""What one rank tells the others when it cannot go on, and what they raise."""

from __future__ import annotations

from ...errors import TrainError

# Kinds of news in an agreement; the greatest one of all ranks counts.
FINE, FAILED, INTERRUPTED = range(3)
MESSAGE = 2048  # bytes of an error that the others get


class RankFailed(TrainError):
    """Another rank has failed; its own error is in the message."""


class RankLost(TrainError):
    """Another rank does not answer: it was killed, its machine is cut off, or it hangs."""


def kind_of(error: BaseException) -> int:
    return FAILED if isinstance(error, Exception) else INTERRUPTED


def describe(error: BaseException) -> str:
    """The error in the message to the others; those that are not the pack's own get their type in front."""
    own = type(error).__module__.partition(".lora_train")[0].partition(".errors")[0] != type(error).__module__
    words = str(error) if own else f"{type(error).__name__}: {error}"
    return words or type(error).__name__


def raised_by(kind: int, messages: list[str]) -> BaseException:
    """What a rank raises that has no error of its own."""
    found = [f"rank {rank}: {message}" for rank, message in enumerate(messages) if message]
    words = "; ".join(found)
    return KeyboardInterrupt(words) if kind == INTERRUPTED else RankFailed(words)


def lost(waiting: list[int], missing: list[int], reason: str) -> RankLost:
    """The error of ranks that waited in vain."""
    names = ", ".join(map(str, missing))
    who = f"rank {names} does" if len(missing) == 1 else f"ranks {names} do" if missing else "another rank does"
    heard = f"; waiting: {', '.join(map(str, waiting))}" if waiting else ""
    return RankLost(
        f"{who} not answer ({reason.strip().partition(chr(10))[0][:200]}{heard}): look for its own error above, and "
        "resume from the last saved state. STREAMCACHE_RANK_TIMEOUT is the time in seconds that ranks wait"
    )
