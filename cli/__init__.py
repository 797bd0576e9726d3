"""The command line: `streamcache <command>`."""
