"""Makes the files in this folder: adapters of LyCORIS and PEFT with random weights, and the changes they stand for.

python make.py        needs lycoris-lora 4.1.3 and peft 0.18.1, which the tests do not
"""

from pathlib import Path

import torch
from lycoris.modules.diag_oft import DiagOFTModule
from lycoris.modules.locon import LoConModule
from lycoris.modules.loha import LohaModule
from lycoris.modules.lokr import LokrModule
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
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
    patterns = {"alpha_pattern": {"image": 3}, "rank_pattern": {"image": 4}, "use_rslora": True}
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


if __name__ == "__main__":
    main()
