"""Runs in ComfyUI's Python: the memory that training needs for the bases that people train. Writes docs/memory.md.

    python dev.py memory [--again] [name of a base …]

Every base has its full size, from ComfyUI's own classes, and no data, so this needs neither weights nor a GPU; autocast
follows a GPU's rules. The blocks of a transformer are alike: it is traced with two and three of each kind, and the rest
is multiplied. Results are kept in docs/memory.json, so that an interrupted run continues; `--again` forgets them.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE, CHART = (ROOT / "docs" / f"memory.{kind}" for kind in ("json", "md", "svg"))
FLUX = {
    "image_model": "flux", "in_channels": 16, "out_channels": 16, "patch_size": 2, "vec_in_dim": 768,
    "context_in_dim": 4096, "hidden_size": 3072, "mlp_ratio": 4.0, "num_heads": 24, "depth": 19,
    "depth_single_blocks": 38, "axes_dim": [16, 56, 56], "theta": 10000, "qkv_bias": True, "guidance_embed": True,
    "txt_ids_dims": [],
}  # fmt: skip
FLUX_2 = {
    "image_model": "flux2", "in_channels": 128, "out_channels": 128, "patch_size": 1, "vec_in_dim": None,
    "mlp_ratio": 3.0, "axes_dim": [32, 32, 32, 32], "theta": 2000, "qkv_bias": False, "ops_bias": False,
    "global_modulation": True, "mlp_silu_act": True, "default_ref_method": "index", "ref_index_scale": 10.0,
    "txt_ids_dims": [3],
}  # fmt: skip
WAN = {
    "image_model": "wan2.1", "model_type": "t2v", "in_dim": 16, "out_dim": 16, "patch_size": (1, 2, 2),
    "freq_dim": 256, "window_size": (-1, -1), "qk_norm": True, "cross_attn_norm": True, "eps": 1e-6,
}  # fmt: skip
SD3 = {
    "in_channels": 16, "out_channels": 16, "patch_size": 2, "input_size": None, "adm_in_channels": 2048,
    "num_patches": 36864, "pos_embed_max_size": 192, "pos_embed_scaling_factor": None, "qk_norm": "rms",
}  # fmt: skip
SDXL = {
    "image_size": 32, "out_channels": 4, "use_spatial_transformer": True, "legacy": False, "num_classes": "sequential",
    "adm_in_channels": 2816, "in_channels": 4, "model_channels": 320, "num_res_blocks": [2, 2, 2],
    "transformer_depth": [0, 0, 2, 2, 10, 10], "channel_mult": [1, 2, 4], "transformer_depth_middle": 10,
    "use_linear_in_transformer": True, "context_dim": 2048, "num_head_channels": 64,
    "transformer_depth_output": [0, 0, 0, 2, 2, 2, 10, 10, 10], "use_temporal_attention": False,
    "use_temporal_resblock": False,
}  # fmt: skip
IMAGE, VIDEO = "1024×1024", "832×480, 33 frames"


@dataclass(frozen=True)
class Base:
    """A model at its full size, and what a sample of it looks like."""

    config: str  # the class in comfy.supported_models
    unet: Mapping[str, Any]
    latent: tuple[int, ...]
    text: tuple[int, int]  # tokens, width
    blocks: tuple[str, ...] = ()  # the names in `unet` that count blocks
    pooled: int = 0
    more: Mapping[str, Any] = field(default_factory=dict)  # of the conditioning
    masked: bool = False  # whether a conditioning has the mask of its text

    @property
    def sample(self) -> str:
        return IMAGE if len(self.latent) == 3 else VIDEO


def _flux_2(hidden: int, double: int, single: int, context: int, guidance: bool) -> Base:
    sizes = {"hidden_size": hidden, "num_heads": hidden // 128, "depth": double, "depth_single_blocks": single}
    unet = {**FLUX_2, **sizes, "context_in_dim": context, "guidance_embed": guidance}
    return Base("Flux2", unet, (128, 64, 64), (512, context), ("depth", "depth_single_blocks"))


def _sd3(depth: int, own_attention: int) -> Base:
    context = {"target": "torch.nn.Linear", "params": {"in_features": 4096, "out_features": depth * 64}}
    more = {"context_embedder_config": context, "x_block_self_attn_layers": list(range(own_attention))}
    unet = {**SD3, "depth": depth, "num_blocks": depth, **more}
    return Base("SD3", unet, (16, 128, 128), (154, 4096), ("num_blocks",) if not own_attention else (), 2048)


def _wan(dim: int, ffn: int, layers: int, channels: int = 16, scale: int = 8) -> Base:
    sizes = {"dim": dim, "ffn_dim": ffn, "num_layers": layers, "num_heads": dim // 128}
    unet = {**WAN, **sizes, "in_dim": channels, "out_dim": channels}
    name = "WAN21_T2V" if channels == 16 else "WAN22_T2V"
    return Base(name, unet, (channels, 9, 480 // scale, 832 // scale), (512, 4096), ("num_layers",))


CHROMA = {
    **{name: value for name, value in FLUX.items() if name != "guidance_embed"}, "image_model": "chroma",
    "in_channels": 64, "out_channels": 64, "in_dim": 64, "out_dim": 3072,
    "hidden_dim": 5120, "n_layers": 5,
}  # fmt: skip
Z_IMAGE = {
    "image_model": "lumina2", "patch_size": 2, "in_channels": 16, "dim": 3840, "cap_feat_dim": 2560, "n_layers": 30,
    "qk_norm": True, "n_heads": 30, "n_kv_heads": 30, "axes_dims": [32, 48, 48], "axes_lens": [1536, 512, 512],
    "rope_theta": 256.0, "ffn_dim_multiplier": 8.0 / 3.0, "z_image_modulation": True, "time_scale": 1000.0,
    "pad_tokens_multiple": 32,
}  # fmt: skip
HUNYUAN = {
    "image_model": "hunyuan_video", "in_channels": 16, "out_channels": 16, "patch_size": [1, 2, 2], "vec_in_dim": 768,
    "axes_dim": [16, 56, 56], "meanflow": False, "context_in_dim": 4096, "hidden_size": 3072, "mlp_ratio": 4.0,
    "num_heads": 24, "depth": 20, "depth_single_blocks": 40, "theta": 256, "qkv_bias": True, "byt5": False,
    "guidance_embed": True, "use_cond_type_embedding": False, "vision_in_dim": None, "meanflow_sum": False,
}  # fmt: skip
QWEN = {"image_model": "qwen_image", "in_channels": 64, "num_layers": 60}
LTX = {
    "image_model": "ltxv", "in_channels": 128, "attention_head_dim": 64, "num_attention_heads": 32,
    "cross_attention_dim": 2048, "num_layers": 28,
}  # fmt: skip
BOTH = ("depth", "depth_single_blocks")
BASES = {
    "SDXL": Base("SDXL", SDXL, (4, 128, 128), (77, 2048), pooled=1280),
    "SD 3.5 medium": _sd3(24, 13),
    "SD 3.5 large": _sd3(38, 0),
    "Flux.1 dev": Base("Flux", FLUX, (16, 128, 128), (512, 4096), BOTH, 768),
    "Flux.2 dev": _flux_2(6144, 8, 48, 15360, True),
    "Flux.2 Klein 4B": _flux_2(3072, 5, 20, 7680, False),
    "Flux.2 Klein 9B": _flux_2(4096, 8, 24, 12288, False),
    "Chroma": Base("Chroma", CHROMA, (16, 128, 128), (512, 4096), BOTH),
    "Qwen-Image": Base("QwenImage", QWEN, (16, 128, 128), (256, 3584), ("num_layers",)),
    "Z-Image": Base("ZImage", Z_IMAGE, (16, 128, 128), (256, 2560), ("n_layers",), more={"num_tokens": 256}),
    "WAN 2.1 1.3B": _wan(1536, 8960, 30),
    "WAN 2.1 / 2.2 14B": _wan(5120, 13824, 40),
    "WAN 2.2 5B": _wan(3072, 14336, 30, 48, 16),
    "LTX-Video 2B": Base("LTXV", LTX, (128, 5, 15, 26), (256, 4096), ("num_layers",), masked=True),
    "LTX-Video 13B": Base(
        "LTXV", {**LTX, "attention_head_dim": 128, "cross_attention_dim": 4096, "num_layers": 48}, (128, 5, 15, 26),
        (256, 4096), ("num_layers",), masked=True,
    ),
    "HunyuanVideo": Base("HunyuanVideo", HUNYUAN, (16, 9, 60, 104), (256, 4096), BOTH, 768),
}  # fmt: skip
# Name of the column → settings, and whether weights are offloaded.
WAYS: dict[str, tuple[dict[str, Any], bool]] = {
    "plain": ({}, False),
    "checkpointing": ({"checkpointing": True}, False),
    "checkpointing, offload": ({"checkpointing": True, "activation_offload": True}, True),
}
FP8 = "fp8 base, checkpointing"  # from "checkpointing": only the weights differ
COLUMNS = ("plain", "checkpointing", FP8, "checkpointing, offload")
COLORS = ("#c44e52", "#dd8452", "#4c72b0", "#55a868")
MOST = 48  # GB; longer bars of the chart end there
PARTS = ("weights", "adapter", "optimizer", "activations", "peak")


def main(host: str, *arguments: str) -> None:
    names = [name for name in arguments if name != "--again"] or list(BASES)
    headless = _load(ROOT / "nodes" / "host" / "headless.py")
    headless.enter_host(host, ["--cpu"])
    headless.register_package()
    import torch

    from streamcache.bench.autocast import gpu_rules

    torch.set_num_threads(1)
    found = _read()
    if "--again" in arguments:
        found = {name: ways for name, ways in found.items() if name not in names}
        _write(found)
    with torch.inference_mode(), gpu_rules("CPU"):
        for name in names:
            for way in WAYS:
                if way in found.get(name, {}):
                    continue
                made = _sum_up(BASES[name], way)
                print(f"{name}, {way}: {made}", flush=True)
                found = _read()  # another process may compute other bases
                found.setdefault(name, {})[way] = made
                _write(found)
    write_page(found)


def _read() -> dict[str, dict[str, dict[str, int]]]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def _write(found: Mapping[str, Mapping[str, Mapping[str, int]]]) -> None:
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


def write_page(found: Mapping[str, Mapping[str, Mapping[str, int]]]) -> None:
    """The table and the chart in the documents."""
    whole = {name: ways for name, ways in found.items() if len(ways) == len(WAYS)}
    found = {name: {**ways, FP8: _in_fp8(ways["checkpointing"])} for name, ways in whole.items()}
    CHART.write_text("\n".join(_draw(found)) + "\n", encoding="utf-8")
    head, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- table -->\n")
    tail = rest.partition("<!-- end -->")[2]
    words = "The dark part of a bar is weights; bars with » go on."
    shown = f"{_table(found)}\n{words}\n\n![Memory of training by base]({CHART.name})\n"
    PAGE.write_text(f"{head}<!-- table -->\n{shown}<!-- end -->{tail}", encoding="utf-8")


def _in_fp8(found: Mapping[str, int]) -> dict[str, int]:
    saved = found["weights"] // 2
    return {**found, "weights": found["weights"] - saved, "peak": found["peak"] - saved}


def _sum_up(base: Base, way: str) -> dict[str, int]:
    """Bytes of each part, from traces with two and three blocks of each kind: the first has an input without a gradient
    and keeps less than the others."""
    few = dict.fromkeys(base.blocks, 2)
    first = _trace(base, way, few)
    total = dict(first)
    for name in base.blocks:
        more = _trace(base, way, {**few, name: 3})
        for part in PARTS:
            total[part] += (more[part] - first[part]) * (base.unet[name] - 2)
    return total


def _trace(base: Base, way: str, blocks: Mapping[str, int]) -> dict[str, int]:
    import torch

    from streamcache.lora_train import TrainConfig, forecast_training
    from streamcache.nodes.host.model.denoiser import HostDenoiser

    settings, offload = WAYS[way]
    denoiser = HostDenoiser(_make(base, blocks), "bf16")
    denoiser.ram = torch.device("meta")  # a stand-in: everything else is on the CPU
    with tempfile.TemporaryDirectory() as folder:
        dataset = _dataset(base, Path(folder) / "set")
        config = TrainConfig(rank=16, precision="bf16", **settings)
        forecast = forecast_training(denoiser, dataset, config, offload)
        dataset.close()
    return {part: getattr(forecast, part) for part in PARTS}


def _make(base: Base, blocks: Mapping[str, int]) -> Any:
    """A patcher whose model has shapes only."""
    import comfy.model_base
    import comfy.model_patcher
    import comfy.supported_models
    import torch

    unet = {**base.unet, **blocks}
    config = getattr(comfy.supported_models, base.config)({**unet, "dtype": torch.bfloat16})
    config.set_inference_dtype(torch.bfloat16, None)
    with torch.device("meta"):
        model = config.get_model({}, "", device=torch.device("meta"))
    model.model_sampling = comfy.model_base.model_sampling(config, model.model_type)
    cpu = torch.device("cpu")
    return comfy.model_patcher.ModelPatcher(model, load_device=cpu, offload_device=cpu)


def _dataset(base: Base, path: Path) -> Any:
    import torch

    from streamcache.dataset_cache import CacheWriter, open_cache

    extras = {**base.more, **({"pooled_output": torch.zeros(1, base.pooled)} if base.pooled else {})}
    if base.masked:
        extras["attention_mask"] = torch.ones(1, base.text[0], dtype=torch.long)
    with CacheWriter(path) as writer:
        size = (1024, 1024) if len(base.latent) == 3 else (832, 480)
        latent = {"samples": torch.zeros(1, *base.latent)}
        conditioning = [[torch.zeros(1, *base.text), extras]]
        writer.add(latent, conditioning, "", "1.png", original_size=size, crop=(0, 0, *size))
    return open_cache(path)


def _table(found: Mapping[str, Any]) -> str:
    lines = ["| base | sample | " + " | ".join(COLUMNS) + " |", "|---|---|" + "---|" * len(COLUMNS)]
    for name, base in BASES.items():
        if name in found:
            cells = [f"{found[name][way]['peak'] / 1e9:.1f}" if way in found[name] else "" for way in COLUMNS]
            lines.append(f"| {name} | {base.sample} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _draw(found: Mapping[str, Any]) -> Iterator[str]:
    """A bar for each base and way, the weights in a darker shade; lines at sizes of graphics cards."""
    names = [name for name in BASES if name in found]
    left, bar, gap, top = 150, 13, 14, 74
    scale: Callable[[float], float] = lambda size: left + min(size, MOST) * 640 / MOST  # noqa: E731
    group = bar * len(COLUMNS) + gap
    height = top + group * len(names) + 30
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 840 {height}" font-family="sans-serif" font-size="12">'
    )
    yield f'<rect width="840" height="{height}" fill="white"/>'
    yield '<text x="12" y="22" font-size="15" font-weight="bold">Memory of training a LoRA, GB</text>'
    for number, (way, color) in enumerate(zip(COLUMNS, COLORS, strict=True)):
        x = 12 + number * 190
        yield f'<rect x="{x}" y="34" width="12" height="12" fill="{color}"/><text x="{x + 18}" y="45">{way}</text>'
    for size in (8, 12, 16, 24, 32, MOST):
        x = scale(size)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top - 8}" y2="{height - 24}" stroke="#bbb"/>'
        yield f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle" fill="#555">{size}</text>'
    for row, name in enumerate(names):
        y = top + row * group
        yield f'<text x="{left - 8}" y="{y + group / 2 - 2}" text-anchor="end">{name}</text>'
        for number, (way, color) in enumerate(zip(COLUMNS, COLORS, strict=True)):
            if way not in found[name]:
                continue
            peak, weights = (found[name][way][part] / 1e9 for part in ("peak", "weights"))
            at = y + number * bar
            width, inner = scale(peak) - left, scale(weights) - left
            yield f'<rect x="{left}" y="{at}" width="{width:.1f}" height="{bar - 2}" fill="{color}" opacity="0.55"/>'
            yield f'<rect x="{left}" y="{at}" width="{inner:.1f}" height="{bar - 2}" fill="{color}"/>'
            words = f"» {peak:.1f}" if peak > MOST else f"{peak:.1f}"
            yield f'<text x="{left + width + 4:.1f}" y="{at + 10}" font-size="10">{words}</text>'
    yield "</svg>"


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(*sys.argv[1:])
