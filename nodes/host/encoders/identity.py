"""Identity of ComfyUI's VAE and CLIP objects: a digest of their weights, patches and settings, however loaded.

Objects that ComfyUI's loaders made from files are identified by these files, which are hashed once and remembered. Any
other object is hashed in memory, once, and again if a sample of its values shows that another pack has changed it. So
is one from files, if some of its values are not those that it had when it was seen first.
"""

import uuid
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import comfy.model_management as management
import torch

from ....dataset_cache import digest_of, files_identity, object_identity

CODE = 1  # raise it when the same model would encode the same image or text to other values
SAMPLED = 1024  # values per tensor that are compared to notice a change
PLACES, VALUES = 8, 128  # per tensor of a model from files: few places, as its memory may not be read from disk yet
_PROCESS = uuid.uuid4().hex
_HASHED: "weakref.WeakKeyDictionary[torch.nn.Module, tuple[str, str]]" = weakref.WeakKeyDictionary()  # sample, identity
_SEEN: "weakref.WeakKeyDictionary[torch.nn.Module, str]" = weakref.WeakKeyDictionary()  # sample at first sight


def vae_files_identity(files: Sequence[str], kind: str = "") -> str:
    """The identity of the VAE that ComfyUI would load from these files."""
    allowed = [torch.float16, torch.bfloat16, torch.float32]
    precision = [str(management.vae_dtype(management.vae_device(), allowed)), str(management.intermediate_dtype())]
    return digest_of(["vae", CODE, files_identity(files), kind, precision])


def clip_files_identity(files: Sequence[str], kind: str, dtype: Any = None) -> str:
    """The identity of the CLIP that ComfyUI would load from these files, before patches and settings."""
    precision = str(dtype or management.text_encoder_dtype(management.text_encoder_device()))
    return digest_of(["clip", CODE, files_identity(files), kind, precision])


def weight_names(files: Iterable[str]) -> str:
    """A display name for weights: the names of their files."""
    return " + ".join(Path(file).stem for file in files)


def name_of(model: Any) -> str:
    """A display name for the weights of a VAE or CLIP in memory; empty if they did not come from files."""
    loader, arguments = _origin(model.patcher)
    files = arguments[0] if loader else []
    return weight_names([files] if isinstance(files, str) else files)


def vae_identity(vae: Any) -> str:
    """The identity of a VAE in memory."""
    loader, arguments = _unedited_origin(vae.first_stage_model, vae.patcher)
    if loader == "load_vae_patcher":
        base = vae_files_identity([arguments[0]])
    elif loader == "load_checkpoint_vae_patcher":
        base = vae_files_identity([arguments[0]], "checkpoint")
    else:
        base = digest_of(["vae", CODE, _weights(vae.first_stage_model, vae.patcher), str(vae.vae_dtype)])
    return with_patches(base, patches_of(vae.patcher))


def clip_identity(clip: Any) -> str:
    """The identity of a CLIP in memory."""
    loader, arguments = _unedited_origin(clip.cond_stage_model, clip.patcher)
    if loader == "load_clip_model_patcher":
        base = clip_files_identity(arguments[0], arguments[2].name, arguments[3].get("dtype"))
    elif loader == "load_checkpoint_clip_patcher":
        base = clip_files_identity([arguments[0]], "checkpoint", arguments[3].get("dtype"))
    else:
        base = digest_of(
            ["clip", CODE, type(clip.cond_stage_model).__name__, _weights(clip.cond_stage_model, clip.patcher)]
        )
    return clip_with_settings(with_patches(base, patches_of(clip.patcher)), clip)


def model_identity(patcher: Any) -> str:
    """The identity of a MODEL in memory, with everything that other nodes set on it."""
    loader, arguments = _unedited_origin(patcher.model, patcher)
    if loader == "load_diffusion_model":
        base = [files_identity([arguments[0]]), describe_patch(arguments[1])]
    elif loader == "load_checkpoint_guess_config":
        base = [files_identity([arguments[0]]), "checkpoint", describe_patch(arguments[6])]
    else:
        base = [type(patcher.model).__name__, _weights(patcher.model, patcher)]
    settings = [describe_patch(patcher.model_options), describe_patch(patcher.object_patches)]
    place = [str(patcher.model.get_dtype()), str(patcher.load_device.type)]
    return with_patches(digest_of(["model", CODE, base, settings, place]), patches_of(patcher))


def conditioning_identity(conditioning: Any) -> str:
    """The identity of a conditioning in memory."""
    return digest_of(["conditioning", CODE, describe_patch(conditioning)])


def clip_with_settings(base: str, clip: Any) -> str:
    """Adds clip-skip and tokenizer settings, which are kept outside the weights."""
    settings = [clip.layer_idx, {str(k): repr(v) for k, v in clip.tokenizer_options.items()}, clip.use_clip_schedule]
    return digest_of([base, settings]) if settings != [None, {}, False] else base


def with_patches(base: str, patches: list[Any]) -> str:
    return digest_of([base, patches]) if patches else base


def patches_of(patcher: Any) -> list[Any]:
    """The patches on the weights: by content if it can be read, otherwise by the random id of the patches."""
    found = [[key, [describe_patch(patch) for patch in patches]] for key, patches in sorted(patcher.patches.items())]
    unseen = [patcher.forced_hooks, patcher.hook_patches, patcher.weight_wrapper_patches, patcher.injections]
    if any(unseen):
        found.append([str(patcher.patches_uuid), repr(patcher.forced_hooks)])
    return found


def describe_patch(value: Any) -> Any:
    """A patch as JSON: tensors by hash, ComfyUI's adapters by their weights."""
    if isinstance(value, torch.Tensor):
        return object_identity(dict(_plain("", value)))
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    if isinstance(value, (torch.dtype, torch.device)):
        return str(value)
    if isinstance(value, torch.nn.Module):  # such as a noise schedule with another shift
        plain = {name: item for name, item in sorted(vars(value).items()) if isinstance(item, (str, int, float, bool))}
        kinds = [each.__qualname__ for each in type(value).__mro__]
        return [kinds, plain, object_identity(dict(value.state_dict()))]
    if isinstance(value, (list, tuple)):
        return [describe_patch(item) for item in value]
    if isinstance(value, dict):
        return [[str(key), describe_patch(item)] for key, item in sorted(value.items(), key=lambda row: str(row[0]))]
    if hasattr(value, "weights"):
        return [type(value).__name__, describe_patch(list(value.weights))]
    name = getattr(value, "__qualname__", None)
    if name and "<" not in name:
        return name
    if hasattr(value, "__code__"):  # made within another function, such as the CFG of RescaleCFG with its multiplier
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return [value.__module__, name, digest_of([value.__code__.co_code.hex()]), [_describe_plain(c) for c in cells]]
    return _only_itself(value)


def _describe_plain(value: Any) -> Any:
    """What a function has taken from around it: numbers, texts and tensors; anything else counts as itself."""
    if isinstance(value, (list, tuple)):
        return [_describe_plain(item) for item in value]
    plain = isinstance(value, (str, int, float, bool, type(None), torch.Tensor))
    return describe_patch(value) if plain else _only_itself(value)


def _only_itself(value: Any) -> str:
    """A name that no other object has, nor one of another process at the same address."""
    return f"{type(value).__name__} {id(value)} {_PROCESS}"


def _origin(patcher: Any) -> tuple[str, tuple]:
    """The name and arguments of the ComfyUI loader that can load this model again."""
    made = getattr(patcher, "cached_patcher_init", None)
    return (made[0].__name__, made[1]) if made else ("", ())


def _unedited_origin(module: torch.nn.Module, patcher: Any) -> tuple[str, tuple]:
    """The same, but ("", ()) for a model that another pack has edited in place since it was seen first."""
    loader, arguments = _origin(patcher)
    if not loader:
        return loader, arguments
    tensors = _tensors(module, patcher)
    sample = object_identity({name: _some(value) for name, value in tensors.items() if not value.is_meta})
    return (loader, arguments) if _SEEN.setdefault(module, sample) == sample else ("", ())


def _tensors(module: torch.nn.Module, patcher: Any) -> dict[str, torch.Tensor]:
    # While patches are applied in place, ComfyUI keeps the original weights in `backup`.
    kept = {key: saved.weight for key, saved in patcher.backup.items()}
    return dict(row for name, value in {**module.state_dict(), **kept}.items() for row in _plain(name, value))


def _weights(module: torch.nn.Module, patcher: Any) -> str:
    tensors = _tensors(module, patcher)
    known, sample = _HASHED.get(module), object_identity(dict(_sampled(*row) for row in tensors.items()))
    if known is None or known[0] != sample:
        known = _HASHED[module] = sample, object_identity(tensors)
    return known[1]


def _sampled(name: str, tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
    """Some values of a tensor, under a name that also changes with every write that torch counts."""
    writes = 0 if tensor.is_inference() else tensor._version
    step = max(tensor.numel() // SAMPLED, 1)
    return f"{name} {writes}", tensor.reshape(-1)[::step]


def _some(tensor: torch.Tensor) -> torch.Tensor:
    """Values from a few places of a tensor; all of a small one."""
    flat = tensor.reshape(-1)
    last = flat.numel() - VALUES
    if last <= PLACES * VALUES:
        return flat
    return torch.cat([flat[start : start + VALUES] for start in range(0, last + 1, last // (PLACES - 1))])


def _plain(name: str, tensor: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """A tensor as plain tensors: quantized weights consist of several, each with its own name."""
    if hasattr(tensor, "__tensor_flatten__"):
        inner, _ = tensor.__tensor_flatten__()
        for part in inner:
            yield from _plain(f"{name}.{part}", getattr(tensor, part))
    else:
        yield name, tensor.detach().as_subclass(torch.Tensor)
