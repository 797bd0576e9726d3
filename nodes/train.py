"""The node Train LoRA: a LoRA from a dataset, on any model of the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import comfy.utils
import numpy as np
import torch
from comfy_api.latest import io, ui
from PIL import Image

from ..lora_train.plots import plot_loss
from ..lora_train.run import check_name
from . import paths, setting_inputs, sockets
from .handles import DatasetHandle
from .host.events import caches_changed
from .host.folders import cache_roots
from .host.lora_folders import find_lora, lora_folder, runs_folder
from .host.train_watch import TrainWatch
from .saving import Given, save
from .training import Pictures, Trained, describe_end, read_config, train_lora


class StreamCacheTrain(io.ComfyNode):
    """Trains an adapter. The dataset streams from disk; the model is not copied."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="StreamCacheTrain",
            display_name="Train LoRA",
            category=sockets.CATEGORY,
            description="Trains a LoRA on a dataset that streams from disk and saves it to output/loras. Stopping "
            "keeps the work: the same run goes on with mode = resume.",
            search_aliases=["lora training", "finetune", "dreambooth", "train model", "lokr", "loha", "dora"],
            is_input_list=True,
            is_output_node=True,
            # Settings that were renamed since a workflow was saved still arrive under their old names.
            accept_all_inputs=True,
            hidden=[io.Hidden.unique_id],
            inputs=_inputs(),
            outputs=_outputs(),
        )

    @classmethod
    def validate_inputs(cls, name: Any = None) -> bool | str:
        return _problem(name[0] if isinstance(name, (list, tuple)) else name)

    @classmethod
    def fingerprint_inputs(cls, start_from: Any = None, **others: Any) -> Any:
        """A LoRA that the training starts from may be another one under the same name."""
        name = start_from[0] if isinstance(start_from, (list, tuple)) else start_from
        path = find_lora(name) if name else ""
        return Path(path).stat().st_mtime_ns if path else 0

    @classmethod
    def execute(
        cls,
        model: list,
        dataset: list = (),
        latents: list = (),
        conditioning: list = (),
        vae: list = (),
        prompts: list = (),
        negative: list = (),
        options: list = (),
        **settings: list,
    ) -> io.NodeOutput:
        config, host = read_config(setting_inputs.read_settings(sockets.scalars(settings)), _first(options))
        _check_name(config.name)
        watch = TrainWatch()
        handle = _ready(Given(_first(dataset), latents, conditioning), config.name, watch)
        pictures = Pictures(_first(vae), prompts, _first(negative))
        trained = train_lora(
            model[0], handle.open(), config, host, pictures, lora_folder(), runs_folder(), watch.running
        )
        return _output(trained, config.name, cls)


NODES = [StreamCacheTrain]


def _inputs() -> list[io.Input]:
    return [
        io.Model.Input("model", tooltip="The model to train on. It is not changed, and not copied."),
        sockets.Dataset.Input(
            "dataset",
            optional=True,
            tooltip="A saved dataset, or a plan from Encode Dataset, which is saved under the run's name first.",
        ),
        io.Latent.Input("latents", optional=True, tooltip="Latents of other nodes, instead of a dataset."),
        io.Conditioning.Input("conditioning", optional=True, tooltip="The conditioning of each of these latents."),
        io.Vae.Input("vae", optional=True, tooltip="Connect one to see sample pictures while the LoRA trains."),
        io.Conditioning.Input(
            "prompts", optional=True, tooltip="What to draw as samples; without it, captions of the dataset."
        ),
        io.Conditioning.Input(
            "negative", optional=True, tooltip="The negative of the samples; without it, the dataset's empty caption."
        ),
        sockets.Options.Input("options", optional=True, tooltip="From Train Options; wins over the settings below."),
        *setting_inputs.main_inputs(),
        *setting_inputs.further_inputs(advanced=True),
    ]


def _outputs() -> list[io.Output]:
    return [
        io.LoraModel.Output("lora", display_name="lora", tooltip="For the host's Load LoRA Model and Save LoRA."),
        io.LossMap.Output("loss_map", display_name="loss_map", tooltip="For the host's Plot Loss Graph."),
        io.String.Output("path", display_name="path", tooltip="The saved file."),
        io.Image.Output("plot", display_name="loss_plot", tooltip="The loss over the steps."),
    ]


def _problem(name: str | None) -> bool | str:
    if name is not None:  # None: linked, so it is looked at when it is known
        try:
            _check_name(name)
        except ValueError as error:
            return str(error)
    return True


def _check_name(name: str) -> None:
    """One folder's and one file's name, on every system, which leads nowhere else."""
    check_name(name)
    paths.contained(lora_folder(), [f"{paths.parse_name(name)[0]}.safetensors"], name)
    paths.contained(runs_folder(), [name], name)


def _first(values: Any) -> Any:
    return values[0] if values else None


def _ready(given: Given, name: str, watch: TrainWatch) -> DatasetHandle:
    """A dataset that can be trained on: a saved one as it is, anything else saved under the run's name."""
    if isinstance(given.dataset, DatasetHandle) and not (given.latents or given.conditionings):
        return given.dataset
    saved = save(given, name, paths.path_to_save(name, cache_roots()), watch.node)
    caches_changed()
    return saved.handle


def _output(trained: Trained, asked: str, cls: type) -> io.NodeOutput:
    result, losses = trained.result, trained.curves.losses
    plot = _to_image(plot_loss(losses, trained.curves.validation))
    words = describe_end(result, trained.run.name, asked)
    facts = {
        "run": trained.run.name,
        "lora": result.lora.name,
        "stopped": result.stopped,
        "step": result.step,
        "steps": result.steps,
        "words": words,
    }
    shown = ui.PreviewImage(plot, cls=cls).as_dict()
    return io.NodeOutput(
        comfy.utils.load_torch_file(str(result.lora), safe_load=True),
        {"loss": [loss for _, loss in losses]},
        str(result.lora),
        plot,
        ui={**shown, "text": [words], "streamcache": [facts]},
    )


def _to_image(picture: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.asarray(picture.convert("RGB"), np.float32) / 255)[None]
