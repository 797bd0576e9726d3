"""The node Train LoRA: a LoRA from a dataset, on any model of the host."""

from __future__ import annotations

from typing import Any

import comfy.utils
from comfy_api.latest import io, ui

from ..dataset_cache import CacheError, read_manifest
from ..lora_train import check_run_name, plot_loss
from . import setting_inputs, sockets
from .host.app import cache_roots, caches_changed, caller_of, find_lora, lora_folder, lora_stamp, runs_folder
from .library import (
    DatasetHandle,
    Given,
    contained,
    parse_name,
    path_to_save,
    problem_of,
    record_result,
    result_fingerprint,
    save,
)
from .train_watch import TrainWatch
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
        name = sockets.first(name)
        return problem_of(name, lambda: _check_name(name))

    @classmethod
    def fingerprint_inputs(cls, name: Any = None, start_from: Any = None, **others: Any) -> Any:
        """It runs again if it was stopped, if its LoRA is gone, or if the one that it starts from is another."""
        place = runs_folder() / str(sockets.first(name))
        trained = result_fingerprint(place, caller_of(cls.hidden.unique_id), lambda: None)
        return [lora_stamp(find_lora(sockets.first(start_from) or "")), trained]

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
        config, host = read_config(setting_inputs.read_settings(sockets.scalars(settings)), sockets.first(options))
        _check_name(config.name)
        watch = TrainWatch()
        handle = _ready(Given(sockets.first(dataset), latents, conditioning), config.name, watch)
        pictures = Pictures(sockets.first(vae), prompts, sockets.first(negative))
        trained = train_lora(
            model[0], handle.open(), config, host, pictures, lora_folder(), runs_folder(), watch.running
        )
        _leave(trained, config.name, cls.hidden.unique_id)
        return _output(trained, config.name, watch.notes, cls)


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


def _check_name(name: str) -> None:
    """One folder's and one file's name, on every system, which leads nowhere else."""
    check_run_name(name)
    contained(lora_folder(), [f"{parse_name(name)[0]}.safetensors"], name)
    contained(runs_folder(), [name], name)


def _ready(given: Given, name: str, watch: TrainWatch) -> DatasetHandle:
    """A dataset that can be trained on: a saved one as it is, anything else saved under the run's name."""
    if isinstance(given.dataset, DatasetHandle) and not (given.latents or given.conditionings):
        return given.dataset
    path, purpose = path_to_save(name, cache_roots()), {"made for": f"training {name}"}
    before = read_manifest(path)
    if before is not None and not purpose.items() <= before.provenance.items():
        raise CacheError(
            f"there is a dataset {name} that was not made for this training; give the training another name, or save "
            "the dataset with Streamable Cache Save first and train on that"
        )
    saved = save(given, name, path, watch.node, purpose)
    watch.notes = saved.facts.get("warnings", [])
    caches_changed()
    return saved.handle


def _leave(trained: Trained, asked: str, node_id: Any) -> None:
    """What was trained stays fresh while its LoRA is there; a run that was stopped is to go on."""
    file = trained.result.lora
    state = None if trained.result.stopped else lora_stamp(file)
    record_result(runs_folder() / asked, caller_of(node_id), state, lambda: lora_stamp(file))


def _output(trained: Trained, asked: str, notes: list[str], cls: type) -> io.NodeOutput:
    result, losses = trained.result, trained.curves.losses
    plot = sockets.image(plot_loss(losses, trained.curves.validation))
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
        ui={**shown, "text": ["\n".join([words, *notes])], "streamcache": [facts]},
    )
