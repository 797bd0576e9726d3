"""The command that runs workflows on a ComfyUI server."""
