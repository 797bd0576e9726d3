"""Makes the files in this folder: adapters of LyCORIS and PEFT with random weights, and the changes they stand for.

python make.py             all the others; needs lycoris-lora 4.1.3 and peft 0.18.1, which the tests do not
python make.py training    only training.safetensors: gradients and losses of plain loops with LyCORIS and PEFT 0.21.2
"""

import sys
from pathlib import Path

import torch
from lycoris.modules.diag_oft import DiagOFTModule
from lycoris.modules.locon import LoConModule
from lycoris.modules.loha import LohaModule
from lycoris.modules.lokr import LokrModule
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import nn

HERE = Path(__file__).parent
WHOLE = 100_000  # a rank from which LoKr stores whole matrices
CASES = {
    "lokr_linear": ("linear", LokrModule, {"lora_dim": 3, "alpha": 2.0, "factor": 2}),
    "lokr_linear_whole": ("linear", LokrModule, {"lora_dim": WHOLE, "alpha": 1.0, "factor": 2}),
    "lokr_linear_both": ("linear", LokrModule, {"lora_dim": 1, "alpha": 2.0, "factor": 4, "decompose_both": True}),
    "lokr_image": ("image", LokrModule, {"lora_dim": 3, "alpha": 0.5, "factor": 2}),
    "lokr_image_whole": ("image", LokrModule, {"lora_dim": WHOLE, "alpha": 1.0, "factor": 2}),
    "lokr_image_tucker": ("image", LokrModule, {"lora_dim": 3, "alpha": 0.5, "factor": 2, "use_tucker": True}),
    "lokr_volume": ("volume", LokrModule, {"lora_dim": 3, "alpha": 1.0, "factor": 2}),
    "lokr_volume_whole": ("volume", LokrModule, {"lora_dim": WHOLE, "alpha": 1.0, "factor": 2}),
    "loha_linear": ("linear", LohaModule, {"lora_dim": 3, "alpha": 1.0}),
    "loha_image_tucker": ("image", LohaModule, {"lora_dim": 3, "alpha": 1.0, "use_tucker": True}),
    "lora_image_tucker": ("image", LoConModule, {"lora_dim": 3, "alpha": 1.0, "use_tucker": True}),
    "oft_linear": ("linear", DiagOFTModule, {"lora_dim": 4, "alpha": 0.0}),
    "oft_linear_rescaled": ("linear", DiagOFTModule, {"lora_dim": 4, "alpha": 0.0, "rescaled": True}),
    "oft_image_rescaled": ("image", DiagOFTModule, {"lora_dim": 4, "alpha": 0.0, "rescaled": True}),
}


PATTERNS = {"alpha_pattern": {"image": 3}, "rank_pattern": {"image": 4}}
STEPS, RATE = 20, 1e-2
TRAININGS = {
    "lora": (LoConModule, {"lora_dim": 3, "alpha": 2.0}),
    "loha": (LohaModule, {"lora_dim": 3, "alpha": 2.0}),
    "lokr": (LokrModule, {"lora_dim": 1, "alpha": 2.0, "factor": 4}),
}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 16)
        self.image = nn.Conv2d(12, 16, 3, padding=1)
        self.volume = nn.Conv3d(12, 16, (1, 3, 3), padding=(0, 1, 1))


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    model = Model()
    expected = {f"base.{name}": layer.weight.clone() for name, layer in model.named_children()}
    for case, (name, kind, settings) in CASES.items():
        layer = getattr(model, name)
        module = kind(f"lycoris_{name}", layer, **settings)
        parts = {part: value for part, value in module.named_parameters() if not part.startswith("org_module")}
        for part, value in parts.items():
            value.copy_(0.3 * torch.randn(value.shape) + (part == "rescale"))
        saved = {part: value for part, value in module.state_dict().items() if not part.startswith("org_module")}
        save_file({f"lycoris_{name}.{part}": value for part, value in saved.items()}, HERE / f"{case}.safetensors")
        # What its forward pass adds: get_diff_weight of LoHa and LoKr multiplies by the scale twice.
        change = (
            module.get_weight(layer.weight.shape)
            if kind in (LohaModule, LokrModule)
            else module.get_diff_weight(1.0)[0]
        )
        expected[case] = change.reshape(layer.weight.shape).contiguous()
    patterns = {**PATTERNS, "use_rslora": True}
    adapted = get_peft_model(model, LoraConfig(r=2, lora_alpha=8, target_modules=["linear", "image"], **patterns))
    for name, value in adapted.named_parameters():
        if "lora_" in name:
            value.copy_(0.3 * torch.randn(value.shape))
    adapted.save_pretrained(HERE / "peft")
    (HERE / "peft/README.md").unlink()
    for name in ("linear", "image"):
        layer = getattr(adapted.base_model.model, name)
        expected[f"peft.{name}"] = layer.get_delta_weight("default").reshape(layer.weight.shape).contiguous()
    save_file(expected, HERE / "expected.safetensors")


def train_all() -> None:
    """Training of each kind: the first weights, their gradients, the loss of each step, and the last weights."""
    found: dict[str, torch.Tensor] = {}
    for kind, (module, settings) in TRAININGS.items():
        model = base_model()
        made = {name: module(name, getattr(model, name), **settings).double() for name in ("linear", "image")}
        parts = {}
        for name, adapter in made.items():
            adapter.apply_to()
            own = {part: value for part, value in adapter.named_parameters() if not part.startswith("org_module")}
            parts |= {f"{name}.{part}": value for part, value in own.items()}
            found[f"lycoris_{kind}.alpha.{name}"] = adapter.alpha.clone()
        found |= train(model, parts, f"lycoris_{kind}")
    config = LoraConfig(r=2, lora_alpha=8, target_modules=["linear", "image"], **PATTERNS)
    adapted = get_peft_model(base_model(), config).double()
    values = {name: value for name, value in adapted.named_parameters() if "lora_" in name}
    short = {name.removeprefix("base_model.model.").replace("default.", ""): value for name, value in values.items()}
    found |= train(adapted.base_model.model, short, "peft")
    save_file(found, HERE / "training.safetensors")


def base_model() -> Model:
    expected, model = load_file(HERE / "expected.safetensors"), Model().double()
    for name in ("linear", "image"):
        getattr(model, name).weight.data = expected[f"base.{name}"].double()
        getattr(model, name).bias.data.zero_()
    return model.requires_grad_(False)


def train(model: nn.Module, parts: dict[str, nn.Parameter], case: str) -> dict[str, torch.Tensor]:
    """A plain loop: AdamW on random rows, drawn in the order in which the test draws them."""
    random = torch.Generator().manual_seed(3)
    for name in sorted(parts):  # of 32 bits, as in files
        parts[name].data = (0.3 * torch.randn(parts[name].shape, generator=random)).double()
    found = {f"{case}.first.{name}": value.detach().float() for name, value in parts.items()}
    optimizer, losses = torch.optim.AdamW(list(parts.values()), lr=RATE, weight_decay=0.01), []
    for step in range(STEPS):
        x, y, pixels, z = (
            torch.randn(shape, generator=random, dtype=torch.float64)
            for shape in ((8, 24), (8, 16), (2, 12, 5, 5), (2, 16, 5, 5))
        )
        loss = (model.linear(x) - y).square().mean() + (model.image(pixels) - z).square().mean()
        loss.backward()
        losses.append(loss.detach())
        if step == 0:
            found |= {f"{case}.gradient.{name}": value.grad.clone() for name, value in parts.items()}
        optimizer.step()
        optimizer.zero_grad()
    last = {f"{case}.last.{name}": value.detach().clone() for name, value in parts.items()}
    return {**found, **last, f"{case}.losses": torch.stack(losses)}


if __name__ == "__main__":
    train_all() if sys.argv[1:] == ["training"] else main()
