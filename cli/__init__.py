"""The headless door to the pack's functions: `streamcache <command>`."""
