"""All knowledge of the host: its models, folders, progress, routes and types."""
