"""The nodes of the pack in ComfyUI. Thin: each resolves its inputs, calls one function and returns."""
