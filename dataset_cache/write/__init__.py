"""Writing: collect entries and samples, publish them as a new generation."""
