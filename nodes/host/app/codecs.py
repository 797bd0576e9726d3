"""ComfyUI's own tensor types, registered so that a cache can store them."""

from comfy.nested_tensor import NestedTensor

from ....dataset_cache import Codec, register_codec


def register_host_types() -> None:
    register_codec(Codec("comfy.nested_tensor", NestedTensor, lambda value: list(value.tensors), NestedTensor))
