"""What the pack's pages show and do: caches, their samples, trash, jobs and runs, without the host."""
