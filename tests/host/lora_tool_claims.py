"""Scenario: files that the LoRA tools wrote, in ComfyUI's own Load LoRA, beside a stack of it with the originals."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from streamcache.lora_train import RankRule, average_loras, convert_lora, inspect_lora, merge_loras, resize_lora
from streamcache.lora_train.adapters import AdapterSettings, build_network
from streamcache.lora_train.export import to_tensors
from streamcache.nodes.host.model.denoiser import HostDenoiser

from .claims import claim, hold
from .families import call
from .family_claims import changes
from .small_families import make_patcher

NAMES = ("SDXL", "Flux", "Flux.2", "Wan", "Qwen-Image", "Lumina 2")
WHOLE = RankRule(10_000)


def run(base: Path) -> dict:
    import folder_paths

    folder = Path(folder_paths.get_folder_paths("loras")[0])
    folder.mkdir(parents=True, exist_ok=True)
    with torch.inference_mode(False), torch.no_grad():
        return hold("lora_tool_claims", globals(), folder)


def train(
    folder: Path, name: str, naming: str = "comfyui", seed: int = 0, **settings: Any
) -> tuple[HostDenoiser, Path]:
    """An adapter of random weights on all layers of a small model of this family, as a file in ComfyUI's folder."""
    denoiser = HostDenoiser(make_patcher(name))
    network = build_network(denoiser, AdapterSettings(**{"rank": 4, "alpha": 2.0, "targets": "all", **settings}))
    generator = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    kind = settings.get("kind", "lora")
    path = folder / f"{name} {naming} {kind} {seed}.safetensors"
    save_file(to_tensors(network, denoiser, naming), path)
    return denoiser, path


def loaded(denoiser: HostDenoiser, *files: tuple[Path, float]) -> dict[str, torch.Tensor]:
    """What a stack of Load LoRA nodes changes in each weight."""
    model = denoiser.patcher
    for path, strength in files:
        (model,) = call("LoraLoaderModelOnly", model=model, lora_name=path.name, strength_model=strength)
    return changes(model)


def close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], where: str) -> None:
    assert found.keys() == expected.keys() and expected, (where, len(found), len(expected))
    for key, change in expected.items():
        assert float((found[key] - change).norm()) < 1e-5 * float(change.norm()), (where, key)


@claim
def a_merged_file_changes_the_model_as_the_stack_does(folder: Path) -> None:
    for name in NAMES:
        denoiser, one = train(folder, name)
        _, two = train(folder, name, seed=1, rank=2, alpha=8.0)
        _, third = train(folder, name, "kohya" if name == "Qwen-Image" else "comfyui", seed=2)
        out = folder / "merged.safetensors"
        merge_loras([one, two, third], out, [0.8, -0.5, 1.2], overwrite=True)
        stack = loaded(denoiser, (one, 0.8), (two, -0.5), (third, 1.2))
        close(loaded(denoiser, (out, 1.0)), stack, name)
        merge_loras([one, two, third], out, [0.8, -0.5, 1.2], WHOLE, overwrite=True)
        close(loaded(denoiser, (out, 1.0)), stack, f"{name}, by rank")


@claim
def a_file_resized_at_full_rank_changes_the_model_as_the_original_does(folder: Path) -> None:
    for name in NAMES:
        for kind in ("lora", "loha", "lokr"):
            denoiser, one = train(folder, name, kind=kind)
            out = folder / "resized.safetensors"
            report = resize_lora(one, out, WHOLE, overwrite=True)
            assert report.kept > 1 - 1e-6 and inspect_lora(out).kinds.keys() == {"LoRA"}
            close(loaded(denoiser, (out, 1.0)), loaded(denoiser, (one, 1.0)), f"{name} {kind}")


@claim
def an_average_changes_the_model_as_the_stack_at_shares_of_1_does(folder: Path) -> None:
    for name in NAMES:
        denoiser, one = train(folder, name)
        _, two = train(folder, name, seed=1)
        out = folder / "average.safetensors"
        average_loras([one, two], out, [1, 3], rule=WHOLE, overwrite=True)
        close(loaded(denoiser, (out, 1.0)), loaded(denoiser, (one, 0.25), (two, 0.75)), name)


@claim
def every_naming_changes_the_model_alike(folder: Path) -> None:
    for name in NAMES:
        for kind in ("lora", "lokr"):
            denoiser, one = train(folder, name, kind=kind)
            kohya, back = folder / "kohya.safetensors", folder / "back.safetensors"
            convert_lora(one, kohya, "kohya", denoiser=denoiser, overwrite=True)
            convert_lora(kohya, back, "comfyui", denoiser=denoiser, overwrite=True)
            expected = loaded(denoiser, (one, 1.0))
            for path, naming in ((kohya, "kohya"), (back, "comfyui")):
                assert inspect_lora(path).naming == naming
                close(loaded(denoiser, (path, 1.0)), expected, f"{name} {kind} {naming}")


@claim
def comfyuis_names_become_kohyas_without_the_model_as_with_it(folder: Path) -> None:
    for name in NAMES:
        denoiser, one = train(folder, name)
        metadata = {"ss_base_model_version": "sdxl_base_v1-0"} if name == "SDXL" else None
        save_file(load_file(one), one, metadata)
        without, with_model = folder / "without.safetensors", folder / "with.safetensors"
        convert_lora(one, without, "kohya", overwrite=True)
        convert_lora(one, with_model, "kohya", denoiser=denoiser, overwrite=True)
        assert load_file(without).keys() == load_file(with_model).keys(), name
        close(loaded(denoiser, (without, 1.0)), loaded(denoiser, (one, 1.0)), name)


@claim
def diffusers_names_and_back_change_the_model_alike(folder: Path) -> None:
    """ComfyUI reads only some names of diffusers: those of Flux.2 and Qwen-Image as well, those of UNets not."""
    for name in ("SDXL", "Flux", "Flux.2", "Qwen-Image"):
        denoiser, one = train(folder, name, targets="attention")
        theirs, back = folder / "theirs.safetensors", folder / "back.safetensors"
        convert_lora(one, theirs, "diffusers", denoiser=denoiser, overwrite=True)
        convert_lora(theirs, back, "comfyui", denoiser=denoiser, overwrite=True)
        expected = loaded(denoiser, (one, 1.0))
        close(loaded(denoiser, (back, 1.0)), expected, name)
        if name in ("Flux.2", "Qwen-Image"):
            close(loaded(denoiser, (theirs, 1.0)), expected, f"{name} as diffusers")
