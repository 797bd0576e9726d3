"""A queue of trainings on disk: jobs in order, each with at most one worker, which survive a kill of either side."""

from .holder import Held, hold
from .job import CANCELLED, DONE, FAILED, RUNNING, Job
from .job_queue import Claim, JobQueue

__all__ = ["CANCELLED", "DONE", "FAILED", "RUNNING", "Claim", "Held", "Job", "JobQueue", "hold"]
