"""The commands that start trainings as processes of their own: sweeps, the queue and its workers."""

from .ranks import add_ranks_flag, asked_to_stop, note_code, start_ranks

__all__ = ["add_ranks_flag", "asked_to_stop", "note_code", "start_ranks"]
