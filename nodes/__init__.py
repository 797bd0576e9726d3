"""The nodes of the pack in ComfyUI. They are thin: each resolves its inputs, calls one function and returns."""
