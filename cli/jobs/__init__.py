"""The commands that start trainings as processes of their own: sweeps, the queue and its workers."""
