"""Small model files with random weights that ComfyUI's loaders accept: two families, VAEs and a text encoder.

Each model is a table of tensor names and shapes; from these the host recognizes the family and its sizes.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

Shapes = dict[str, tuple[int, ...]]

FLOW_MODEL = "tiny_flow.safetensors"  # SD3's transformer: flow matching, 16 latent channels
EPS_MODEL = "tiny_eps.safetensors"  # SD1.5's UNet: eps prediction, 4 latent channels
TEXT_ENCODER = "tiny_text.pt"  # CLIP-L


def write_models(models: Path) -> None:
    """Write all of them to ComfyUI's models folder `models`. Every call writes the same bytes."""
    for folder in ("diffusion_models", "vae_approx", "text_encoders"):
        (models / folder).mkdir(parents=True, exist_ok=True)
    save_file(_fill(_transformer_shapes(), seed=1), models / "diffusion_models" / FLOW_MODEL)
    half = {name: tensor.half() for name, tensor in _fill(_unet_shapes(), seed=2).items()}
    save_file(half, models / "diffusion_models" / EPS_MODEL)
    for name, channels in (("taesd3", 16), ("taesd", 4)):
        save_file(_fill(_encoder_shapes(channels), seed=3), models / "vae_approx" / f"{name}_encoder.safetensors")
        save_file(_fill(_decoder_shapes(channels), seed=4), models / "vae_approx" / f"{name}_decoder.safetensors")
    torch.save(_text_encoder(), models / "text_encoders" / TEXT_ENCODER)


def _fill(shapes: Shapes, seed: int) -> dict[str, torch.Tensor]:
    """Vectors are norms or biases; the rest is random at a scale that keeps activations near 1."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            tensors[name] = torch.ones(shape) if name.endswith("weight") else torch.zeros(shape)
        else:
            tensors[name] = torch.randn(shape, generator=generator) / math.sqrt(math.prod(shape[1:]))
    return tensors


def _linear(name: str, inputs: int, outputs: int, bias: bool = True) -> Shapes:
    return {f"{name}.weight": (outputs, inputs), **({f"{name}.bias": (outputs,)} if bias else {})}


def _convolution(name: str, inputs: int, outputs: int, size: int = 3, bias: bool = True) -> Shapes:
    return {f"{name}.weight": (outputs, inputs, size, size), **({f"{name}.bias": (outputs,)} if bias else {})}


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _transformer_shapes(depth: int = 2) -> Shapes:
    width = 64 * depth  # ComfyUI derives the number of blocks from the width.
    shapes: Shapes = {"pos_embed": (1, 32 * 32, width)}
    shapes |= _convolution("x_embedder.proj", 16, width, size=2)
    shapes |= _linear("t_embedder.mlp.0", 256, width) | _linear("t_embedder.mlp.2", width, width)
    shapes |= _linear("y_embedder.mlp.0", 2048, width) | _linear("y_embedder.mlp.2", width, width)
    shapes |= _linear("context_embedder", 4096, width)
    for block in range(depth):
        shapes |= _joint_block(f"joint_blocks.{block}.x_block", width, whole=True)
        # The text side of the last block ends after attention: nothing uses its output.
        shapes |= _joint_block(f"joint_blocks.{block}.context_block", width, whole=block < depth - 1)
    shapes |= _linear("final_layer.linear", width, 2 * 2 * 16)
    return shapes | _linear("final_layer.adaLN_modulation.1", width, 2 * width)


def _joint_block(name: str, width: int, whole: bool) -> Shapes:
    shapes = _linear(f"{name}.attn.qkv", width, 3 * width)
    shapes |= _linear(f"{name}.adaLN_modulation.1", width, (6 if whole else 2) * width)
    if whole:
        shapes |= _linear(f"{name}.attn.proj", width, width)
        shapes |= _linear(f"{name}.mlp.fc1", width, 4 * width) | _linear(f"{name}.mlp.fc2", 4 * width, width)
    return shapes


def _unet_shapes() -> Shapes:
    """One level and no middle block. ComfyUI recognizes SD1.5 by the width and the context."""
    width, time, context = 320, 1280, 768
    shapes = _linear("time_embed.0", width, time) | _linear("time_embed.2", time, time)
    shapes |= _convolution("input_blocks.0.0", 4, width)
    shapes |= _residual_block("input_blocks.1.0", width, width, time)
    shapes |= _attention_block("input_blocks.1.1", width, context)
    for block in range(2):
        shapes |= _residual_block(f"output_blocks.{block}.0", 2 * width, width, time)
    return shapes | _norm("out.0", width) | _convolution("out.2", width, 4)


def _residual_block(name: str, inputs: int, outputs: int, time: int) -> Shapes:
    shapes = _norm(f"{name}.in_layers.0", inputs) | _convolution(f"{name}.in_layers.2", inputs, outputs)
    shapes |= _linear(f"{name}.emb_layers.1", time, outputs)
    shapes |= _norm(f"{name}.out_layers.0", outputs) | _convolution(f"{name}.out_layers.3", outputs, outputs)
    return shapes | (_convolution(f"{name}.skip_connection", inputs, outputs, size=1) if inputs != outputs else {})


def _attention_block(name: str, width: int, context: int) -> Shapes:
    block = f"{name}.transformer_blocks.0"
    shapes = _norm(f"{name}.norm", width) | _convolution(f"{name}.proj_in", width, width, size=1)
    for attention, source in (("attn1", width), ("attn2", context)):
        shapes |= _linear(f"{block}.{attention}.to_q", width, width, bias=False)
        for part in ("to_k", "to_v"):
            shapes |= _linear(f"{block}.{attention}.{part}", source, width, bias=False)
        shapes |= _linear(f"{block}.{attention}.to_out.0", width, width)
    shapes |= _linear(f"{block}.ff.net.0.proj", width, 8 * width) | _linear(f"{block}.ff.net.2", 4 * width, width)
    for norm in ("norm1", "norm2", "norm3"):
        shapes |= _norm(f"{block}.{norm}", width)
    return shapes | _convolution(f"{name}.proj_out", width, width, size=1)


# The small autoencoder is a sequence: c = convolution, h = halving or doubling one (no bias), b = block, . = none.
def _encoder_shapes(channels: int) -> Shapes:
    return _sequence("cbhbbbhbbbhbbbc", first=3, last=channels)


def _decoder_shapes(channels: int) -> Shapes:
    return _sequence(".c.bbb.hbbb.hbbb.hbc", first=channels, last=3)


def _sequence(layers: str, first: int, last: int, width: int = 64) -> Shapes:
    shapes: Shapes = {}
    ends = {layers.index("c"): (first, width), layers.rindex("c"): (width, last)}
    for i, layer in enumerate(layers):
        if layer == "b":
            for j in (0, 2, 4):
                shapes |= _convolution(f"{i}.conv.{j}", width, width)
        elif layer != ".":
            shapes |= _convolution(str(i), *ends.get(i, (width, width)), bias=layer == "c")
    return shapes


def _text_encoder() -> dict[str, torch.Tensor]:
    """CLIP-L in full size. All tensors are views of one small storage, so the file is small."""
    pool = (torch.randn(200_000, generator=torch.Generator().manual_seed(5)) * 0.02).half()
    vectors = {"weight": torch.ones(3072).half(), "bias": torch.zeros(3072).half()}
    tensors = {}
    for i, (name, shape) in enumerate(_text_shapes()):
        if len(shape) == 1:
            tensors[name] = vectors[name.rpartition(".")[2]][: shape[0]]
        else:
            # Neighboring rows start a few elements apart, so no two are equal.
            step = 3 if shape[0] > 10_000 else 11
            spare = pool.numel() - (shape[0] - 1) * step - shape[1]
            tensors[name] = pool.as_strided(shape, (step, 1), 7919 * i % spare)
    return tensors


def _text_shapes(width: int = 768) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "text_model.embeddings.token_embedding.weight", (49408, width)
    yield "text_model.embeddings.position_embedding.weight", (77, width)
    for layer in range(12):
        name = f"text_model.encoder.layers.{layer}"
        shapes = _norm(f"{name}.layer_norm1", width) | _norm(f"{name}.layer_norm2", width)
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes |= _linear(f"{name}.self_attn.{part}", width, width)
        shapes |= _linear(f"{name}.mlp.fc1", width, 4 * width) | _linear(f"{name}.mlp.fc2", 4 * width, width)
        yield from shapes.items()
    yield from _norm("text_model.final_layer_norm", width).items()
    yield "text_projection.weight", (width, width)
