"""Scenario: LoRA Test Grid against the same pictures from ComfyUI's own nodes, on both families of files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

from .claims import claim, hold
from .families import FAMILIES, Loaded, call, load

PROMPTS = ("a cat on a wall", "a dog", "a house by the sea")
STRENGTHS = (0.6, 1.2)
SAMPLING = {"steps": 2, "cfg": 3.0, "sampler": "euler", "scheduler": "simple", "width": 64, "height": 96}
LAYERS = {
    "flow": "diffusion_model.joint_blocks.0.x_block.attn.qkv",
    "eps": "diffusion_model.input_blocks.1.1.transformer_blocks.0.attn1.to_q",
}
SHAPES = {"flow": (384, 128), "eps": (320, 320)}
TEXT_LAYER = "text_encoders.clip_l.transformer.text_model.encoder.layers.0.mlp.fc1"
TEXT_LAYERS = {"flow": TEXT_LAYER, "eps": "lora_te_text_model_encoder_layers_0_mlp_fc1"}


class Case:
    """A family's models, and four LoRA files for it: three for the model, the last also for the text encoder."""

    def __init__(self, name: str) -> None:
        self.name, self.models = name, load(name)
        self.loras = [f"{name}_{number}.safetensors" for number in range(4)]
        for number, file in enumerate(self.loras):
            write_lora(file, number, LAYERS[name], SHAPES[name], TEXT_LAYERS[name] if number == 3 else "")


def run(base: Path) -> dict:
    return {name: hold("grid_claims", globals(), Case(name)) for name in FAMILIES}


def folder() -> Path:
    from streamcache.nodes.host.app import lora_folder

    lora_folder().mkdir(parents=True, exist_ok=True)
    return lora_folder()


def write_lora(file: str, seed: int, layer: str, shape: tuple[int, int], text: str = "") -> None:
    random = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (outputs, inputs) in {layer: shape, **({text: (3072, 768)} if text else {})}.items():
        tensors[f"{name}.lora_up.weight"] = torch.randn(outputs, 2, generator=random) * 0.3
        tensors[f"{name}.lora_down.weight"] = torch.randn(2, inputs, generator=random) * 0.3
        tensors[f"{name}.alpha"] = torch.tensor(2.0)
    save_file(tensors, folder() / file, {"ss_network_dim": "2"})


def grid(models: Loaded, **inputs: Any) -> Any:
    """The node's outputs. As in ComfyUI, every input is a list."""
    from streamcache.nodes.grid.lora_grid import StreamCacheLoraGrid

    given = {"model": models.model, "vae": models.vae, "clip": models.clip, "seeds": "7", **SAMPLING, **inputs}
    lists = {name: value if isinstance(value, list) else [value] for name, value in given.items() if value is not None}
    return StreamCacheLoraGrid.PREPARE_CLASS_CLONE(None).execute(**lists).args


def plain(models: Loaded, lora: str, strength: float, text: str, seed: int = 7, negative: str = "") -> torch.Tensor:
    """The picture of a workflow with ComfyUI's own nodes."""
    model, clip = models.model, models.clip
    if lora:
        model, clip = call(
            "LoraLoader", model=model, clip=clip, lora_name=lora, strength_model=strength, strength_clip=strength
        )
    (positive,) = call("CLIPTextEncode", clip=clip, text=text)
    (without,) = call("CLIPTextEncode", clip=clip, text=negative)
    (latent,) = call("EmptyLatentImage", width=SAMPLING["width"], height=SAMPLING["height"], batch_size=1)
    (drawn,) = call(
        "KSampler", model=model, seed=seed, steps=SAMPLING["steps"], cfg=SAMPLING["cfg"],
        sampler_name=SAMPLING["sampler"], scheduler=SAMPLING["scheduler"], positive=positive, negative=without,
        latent_image=latent, denoise=1.0,
    )  # fmt: skip
    return call("VAEDecode", vae=models.vae, samples=drawn)[0]


def counted() -> tuple[list, Any]:
    """Every call of ComfyUI's sampler from now on, and a function that ends the counting."""
    import nodes

    calls, sample = [], nodes.common_ksampler

    def counting(*given: Any, **options: Any) -> Any:
        calls.append(given[1:6])
        return sample(*given, **options)

    nodes.common_ksampler = counting
    return calls, lambda: setattr(nodes, "common_ksampler", sample)


def make_run(case: Case, name: str) -> Path:
    """A run whose exports are the LoRA files of the case."""
    from streamcache.nodes.host.app import runs_folder

    exports = [{"file": file, "step": 20 * (number + 1), "epoch": 1} for number, file in enumerate(case.loras)]
    place = runs_folder() / name
    place.mkdir(parents=True, exist_ok=True)
    described = {"lora": str(folder() / case.loras[-1]), "step": 80, "exports": exports, "status": "done"}
    (place / "run.json").write_text(json.dumps(described))
    return place


def refused(words: str, case: Case, **inputs: Any) -> None:
    """The grid is refused with these words before the sampler is called."""
    calls, end = counted()
    try:
        grid(case.models, prompts="a cat", **inputs)
    except ValueError as error:
        assert words in str(error), str(error)
    else:
        raise AssertionError("not refused")
    finally:
        end()
    assert not calls


@claim
def i2_every_picture_equals_that_of_comfyuis_own_nodes(case: Case) -> None:
    sheet, images = grid(
        case.models, prompts="\n".join(PROMPTS), negative="blurry", loras="\n".join(case.loras), strengths="0.6, 1.2"
    )
    columns = [("", 0.0), *((lora, strength) for lora in case.loras for strength in STRENGTHS)]
    assert images.shape == (27, 96, 64, 3) and sheet.shape[0] == 1
    made = [plain(case.models, *column, text, negative="blurry") for text in PROMPTS for column in columns]
    wrong = [place for place, each in enumerate(made) if not torch.equal(each[0], images[place])]
    assert not wrong, wrong
    assert len(torch.unique(images.flatten(1), dim=0)) == 27


@claim
def i2_conditionings_and_texts_give_the_same_pictures(case: Case) -> None:
    words = [call("CLIPTextEncode", clip=case.models.clip, text=text)[0] for text in (*PROMPTS[:2], "")]
    lora = case.loras[0]
    _, texts = grid(case.models, prompts="\n".join(PROMPTS[:2]), loras=lora)
    _, given = grid(case.models, prompts=words[:2], negative=[words[2]], loras=lora, clip=None)
    assert torch.equal(texts, given)


@claim
def i2_each_text_is_encoded_once_for_each_state_of_the_clip(case: Case) -> None:
    import comfy.sd

    calls, encode = [], comfy.sd.CLIP.encode_from_tokens_scheduled

    def counting(self: Any, *given: Any, **options: Any) -> Any:
        calls.append(1)
        return encode(self, *given, **options)

    comfy.sd.CLIP.encode_from_tokens_scheduled = counting
    try:
        loras = f"{case.loras[0]}\n{case.loras[3]}"
        grid(case.models, prompts="\n".join(PROMPTS), loras=loras, strengths="0.6, 1.2")
    finally:
        comfy.sd.CLIP.encode_from_tokens_scheduled = encode
    assert len(calls) == 4 * 3, len(calls)  # four texts: without a LoRA of the CLIP, and for the last at two strengths


@claim
def i2_a_grid_of_a_run_grows_and_no_picture_is_made_twice(case: Case) -> None:
    place = make_run(case, f"grid-{case.name}")
    small = {"run": place.name, "prompts": PROMPTS[0], "exports": "20, 40"}
    calls, end = counted()
    try:
        _, first = grid(case.models, **small)
        assert len(calls) == 3 == len(json.loads((place / "grid" / "index.json").read_text())["pictures"])
        _, again = grid(load(case.name), **small)  # loaded again, as after a restart
        assert len(calls) == 3 and torch.equal(first, again)
        _, more = grid(case.models, **{**small, "prompts": "\n".join(PROMPTS[:2]), "exports": "all"})
        assert len(calls) == 2 * 5 and torch.equal(more[0], first[0]) and torch.equal(more[2], first[2])
    finally:
        end()
    rows = json.loads((place / "grid" / "index.json").read_text())["pictures"]
    assert {(row["name"], row["step"]) for row in rows if row["lora"]} == {(place.name, 20 * n) for n in (1, 2, 3, 4)}
    kept = np.asarray(Image.open(place / "grid" / rows[0]["file"]))
    assert np.array_equal(kept, np.clip(255.0 * first[0].cpu().numpy(), 0, 255).astype(np.uint8))


@claim
def i2_a_changed_model_makes_its_own_pictures(case: Case) -> None:
    place = make_run(case, f"changed-{case.name}")
    small = {"run": place.name, "prompts": PROMPTS[0], "exports": "20", "base": False}
    (patched, _) = call(
        "LoraLoader", model=case.models.model, clip=case.models.clip, lora_name=case.loras[1], strength_model=0.5,
        strength_clip=0.0,
    )  # fmt: skip
    calls, end = counted()
    try:
        _, one = grid(case.models, **small)
        _, other = grid(Loaded(patched, case.models.vae, case.models.clip), **small)
        assert len(calls) == 2 and not torch.equal(one, other)
    finally:
        end()


@claim
def i2_a_node_before_the_model_is_part_of_the_key_and_stays_so_after_a_restart(case: Case) -> None:
    place = make_run(case, f"patched-{case.name}")
    small = {"run": place.name, "prompts": PROMPTS[0], "exports": "20", "base": False}

    def rescaled(multiplier: float) -> Loaded:
        models = load(case.name)  # loaded again, as after a restart
        (model,) = call("RescaleCFG", model=models.model, multiplier=multiplier)
        if case.name == "flow":
            (model,) = call("ModelSamplingSD3", model=model, shift=2.0)
        return Loaded(model, models.vae, models.clip)

    calls, end = counted()
    try:
        grid(rescaled(0.7), **small)
        grid(rescaled(0.7), **small)
        assert len(calls) == 1, len(calls)
        grid(rescaled(0.3), **small)
        assert len(calls) == 2, len(calls)
    finally:
        end()


@claim
def i2_bad_loras_are_refused_before_anything_is_drawn(case: Case) -> None:
    other = "eps" if case.name == "flow" else "flow"
    write_lora("foreign.safetensors", 1, LAYERS[other], SHAPES[other])
    write_lora("wide.safetensors", 1, LAYERS[case.name], (640, 640))
    (folder() / "broken.safetensors").write_bytes(b"no LoRA")
    refused("foreign.safetensors: a LoRA for another model: none of its 3 tensors", case, loras="foreign.safetensors")
    refused("wide.safetensors: a LoRA for another model: its", case, loras=f"{case.loras[0]}\nwide.safetensors")
    refused("broken.safetensors: not a LoRA file", case, loras="broken.safetensors")
    refused('loras = "gone.safetensors": LoRA not found', case, loras="gone.safetensors")
    refused("there is no such run", case, run="missing")
    make_run(case, "short")
    refused("short has no LoRA of step 30; it has 20, 40, 60, 80", case, run="short", exports="30")
    refused("no columns", case, base=False)
    refused("strengths", case, loras=case.loras[0], strengths="strong")


@claim
def i3_texts_without_a_clip_are_refused(case: Case) -> None:
    refused("is text, and no text encoder is connected", case, loras=case.loras[0], clip=None)


@claim
def i2_an_interrupt_passes_and_keeps_what_was_made(case: Case) -> None:
    import comfy.model_management as management

    place = make_run(case, f"cut-{case.name}")
    calls, end = counted()
    import nodes

    sample = nodes.common_ksampler

    def stopping(*given: Any, **options: Any) -> Any:
        if len(calls) == 2:
            management.interrupt_current_processing()
        return sample(*given, **options)

    nodes.common_ksampler = stopping
    try:
        grid(case.models, run=place.name, prompts=PROMPTS[0])
    except management.InterruptProcessingException:
        pass
    else:
        raise AssertionError("not interrupted")
    finally:
        end()
        management.interrupt_current_processing(False)
    assert len(json.loads((place / "grid" / "index.json").read_text())["pictures"]) == 2
