"""The parts of a training step that StreamCache computes itself: as they are, beside their former or plain forms."""

from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..lora_train.adapters import AdapterSettings, draw_numbers, seeded_generator
from ..lora_train.adapters.layer import Layer
from ..lora_train.adapters.loha import Loha
from ..lora_train.adapters.masks import LayerMask
from ..lora_train.compute import Ema
from ..lora_train.optimizers import Rates, make_optimizer
from ..lora_train.step import clip_gradients
from .rounds import MIN_ROUNDS, Settings, take_turns
from .table import Figure

WIDTH, RANK, LAYERS = 640, 16, 560  # the size of an SDXL LoRA on attention: 1,120 tensors
ROWS = 256  # of a layer's input
DROPPED = 0.1


def measure_steps(folder: Path, settings: Settings) -> list[Figure]:
    layers = max(LAYERS * settings.samples // 2000, 4)
    rounds = [range(3)] * (max(settings.rounds, MIN_ROUNDS) + 1)
    group = f"Parts of a step ({2 * layers:,} tensors of {RANK} × {WIDTH}; one core)"
    parts: dict[str, tuple[str, Callable[[], object], Callable[[], object]]] = {
        "AdamW": ("one tensor after the other", *_optimizers(layers)),
        "clipping": ("clip_grad_norm_", *_clipping(layers)),
        "EMA": ("one tensor after the other", *_averages(layers)),
        "a LoHa layer, forward and backward": ("checkpointed", *_loha()),
        "a LoHa convolution, weights computed again": ("kept weights", *_loha_convolution()),
        "a dropout mask": ("a generator per layer", *_masks()),
    }
    figures = []
    for name, (form, before, now) in parts.items():
        times = take_turns({"before": lambda _, f=before: f(), "now": lambda _, f=now: f()}, rounds)
        note = f"{1e3 * times.median('before'):.3g} ms → {1e3 * times.median('now'):.3g} ms"
        figures.append(Figure(group, f"{name}, compared with {form}", times.ratio("now", "before"), "×", note=note))
    return figures


def _weights(layers: int) -> list[nn.Parameter]:
    random = torch.Generator().manual_seed(0)
    made = [nn.Parameter(torch.randn(RANK, WIDTH, generator=random)) for _ in range(2 * layers)]
    for weight in made:
        weight.grad = torch.randn(weight.shape, generator=random)
    return made


def _optimizers(layers: int) -> Iterable[Callable[[], object]]:
    return [make_optimizer("AdamW", [{"params": _weights(layers)}], Rates(1e-4), fused).step for fused in (False, True)]


def _clipping(layers: int) -> Iterable[Callable[[], object]]:
    one, other = _weights(layers), _weights(layers)
    return lambda: nn.utils.clip_grad_norm_(one, 1.0), lambda: clip_gradients(other, 1.0)


def _averages(layers: int) -> Iterable[Callable[[], object]]:
    weights = _weights(layers)
    means = [weight.detach().clone() for weight in weights]

    @torch.no_grad()
    def update() -> None:
        for mean, weight in zip(means, weights, strict=True):
            mean.lerp_(weight.float(), 0.1)

    return update, Ema(nn.ParameterList(weights), 0.9).update


def _loha() -> Iterable[Callable[[], object]]:
    layer = Layer(0, WIDTH, WIDTH)
    made = Loha.create(layer, RANK, AdapterSettings(kind="loha", rank=RANK), seeded_generator("loha"))
    x = torch.randn(4 * ROWS, WIDTH, requires_grad=True)

    def apply(x: Tensor) -> Tensor:
        return layer.apply(x, made.weight())

    def before() -> None:
        checkpoint(apply, x, use_reentrant=False, preserve_rng_state=False).sum().backward()

    return before, lambda: made(x).sum().backward()


def _loha_convolution() -> Iterable[Callable[[], object]]:
    """Keeping takes three matrices of the layer's size for each layer, 44 MB here; computing again keeps none."""
    layer = Layer(2, WIDTH, WIDTH, (3, 3), (1, 1), (1, 1), (1, 1))
    made = Loha.create(layer, RANK, AdapterSettings(kind="loha", rank=RANK), seeded_generator("loha"))
    x = torch.randn(1, WIDTH, 32, 32, requires_grad=True)
    return lambda: layer.apply(x, made.weight()).sum().backward(), lambda: made(x).sum().backward()


def _masks() -> Iterable[Callable[[], object]]:
    shape, numbers, mask = torch.Size((ROWS, WIDTH)), draw_numbers(seeded_generator("numbers")), LayerMask.of("layer")
    return (
        lambda: torch.rand(shape, generator=seeded_generator("0:1:layer")) >= DROPPED,
        lambda: mask.keep(numbers, shape, DROPPED),
    )
