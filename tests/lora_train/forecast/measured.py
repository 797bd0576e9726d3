"""The real memory of a training's steps, for comparison with its forecast."""

import gc
from dataclasses import replace
from typing import Any

import torch

from streamcache.lora_train.config import TrainConfig
from streamcache.lora_train.data import Loaded
from streamcache.lora_train.denoiser import Denoiser
from streamcache.lora_train.forecast import PeakMemory
from streamcache.lora_train.forecast.forecast import adapters_attached, largest_batch
from streamcache.lora_train.memory import saving_memory
from streamcache.lora_train.objective import RULES
from streamcache.lora_train.parts import make_stepper
from streamcache.lora_train.session import make_order


def measured_peak(denoiser: Denoiser, dataset: Any, config: TrainConfig) -> int:
    """Bytes of all tensors at the peak of the second real step, which has the optimizer's state from the first."""
    config = replace(config, caption_dropout=0.0, preservation_share=1.0)
    with torch.inference_mode(False), torch.enable_grad(), denoiser.session():
        denoiser.prepare_for(dataset)
        stepper = make_stepper(denoiser, dataset, config, config.objective(RULES), None)
        plan = largest_batch(dataset, make_order(dataset, config)[0])
        batch = dataset.read_batch(plan.indices, variants=plan.variants)
        loaded = Loaded(plan, batch, stepper.draw(plan, batch))
        memory = PeakMemory(denoiser.device)
        memory.hold(denoiser.weights())
        memory.hold(stepper.network.parameters())
        if stepper.training_adapter is not None:
            memory.hold(stepper.training_adapter.parameters())
        with (
            adapters_attached(stepper),
            saving_memory(denoiser.blocks(), config.checkpointing, config.activation_offload),
            memory,
        ):
            for _ in range(2):
                gc.collect()
                memory.peak = memory.now
                stepper.backward(iter([loaded] * config.accumulate))
                stepper.clip()
                stepper.update()
    return memory.peak
