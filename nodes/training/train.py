"""The node Train LoRA: a LoRA from a dataset, on any ComfyUI model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import comfy.utils
from comfy_api.latest import io, ui

from ...dataset_cache import CacheError, Dataset, Plan, free_name, read_manifest, spelled
from ...lora_train import (
    Curves,
    Run,
    TrainConfig,
    TrainError,
    TrainResult,
    WatchRun,
    can_begin,
    check_run_name,
    find_exports,
    is_run_locked,
    latest_run,
    open_run,
    plot_loss,
    read_curves,
    read_run_json,
    rehearse,
    train_in_run,
)
from .. import setting_inputs, sockets
from ..host import HostSettings
from ..host.app import (
    cache_roots,
    caches_changed,
    caller_of,
    find_lora,
    lora_folder,
    lora_stamp,
    runs_folder,
    store_lora,
)
from ..library import (
    DatasetHandle,
    DatasetPlan,
    Given,
    SampleImages,
    check_given,
    contained,
    describe_files,
    encoded_before,
    made_for_run,
    make_sample_images,
    nothing_given,
    parse_name,
    path_to_save,
    problem_of,
    record_result,
    result_fingerprint,
    save,
    trained_files,
)
from ..sockets import OPEN
from .options import StreamCacheTrainOptions, join_settings
from .recipe import StreamCacheRecipe
from .watch import TrainWatch, with_forecast

LEFT = ("stopped", "interrupted")  # how a run ended that can go on


class StreamCacheTrain(io.ComfyNode):
    """Trains an adapter. The dataset streams from disk; the model is not copied."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="StreamCacheTrain",
            display_name="Train LoRA (StreamCache)",
            category=sockets.CATEGORY,
            description="Trains a LoRA on a dataset that streams from disk and saves it to output/loras. A stopped run "
            "is saved too and continues with mode = resume.",
            search_aliases=["lora training", "finetune", "dreambooth", "train model", "lokr", "loha", "dora"],
            is_input_list=True,
            is_output_node=True,
            # Settings of old workflows arrive under the names that they had then.
            accept_all_inputs=True,
            hidden=[io.Hidden.unique_id],
            inputs=_inputs(),
            outputs=_outputs(),
        )

    @classmethod
    def validate_inputs(cls, name: Any = None, dataset: Any = OPEN, latents: Any = OPEN) -> bool | str:
        # Now, and not after the model is loaded.
        return nothing_given("train on") if dataset is latents is OPEN else problem_of(sockets.first(name), _check_name)

    @classmethod
    def fingerprint_inputs(
        cls, name: Any = None, start_from: Any = None, training_adapter: Any = None, **others: Any
    ) -> Any:
        """Changes if the run was stopped, if its LoRA is gone, or if a LoRA that it begins with changed."""
        place = runs_folder() / str(sockets.first(name))
        trained = result_fingerprint(place, caller_of(cls.hidden.unique_id), lambda: None)
        files = [sockets.first(start_from), sockets.first(training_adapter)]
        return [*(lora_stamp(find_lora(file)) if file else None for file in files), trained]

    @classmethod
    def execute(
        cls,
        model: Sequence[Any],
        dataset: Sequence[DatasetHandle | DatasetPlan] = (),
        latents: Sequence[dict] = (),
        conditioning: Sequence[list] = (),
        vae: Sequence[Any] = (),
        prompts: Sequence[Any] = (),
        negative: Sequence[Any] = (),
        options: Sequence[Mapping[str, Any]] = (),
        training_lora: Sequence[Mapping[str, Any]] = (),
        clip: Sequence[Any] = (),
        **settings: Any,
    ) -> io.NodeOutput:
        values = setting_inputs.read_settings(sockets.scalars(settings))
        config, host, recipe = join_settings(values, sockets.first(options))
        config = _with_training_lora(config, sockets.first(training_lora))
        _check_name(config.name, new=config.mode == "new")
        watch, given = TrainWatch(asdict(host)), Given(sockets.first(dataset), latents, conditioning)
        remarks = [*recipe, *_describe_left(config)]
        if remarks:
            watch.node.show("\n".join(remarks))
        images = make_sample_images(sockets.first(vae), prompts, sockets.first(negative), sockets.first(clip))
        handle = _saved(given, config.name, watch, lambda plan: _rehearse(model[0], plan, config, host, images))
        watch.notes = [*remarks, *watch.notes]
        folders = lora_folder(), runs_folder()
        trained = train_lora(model[0], handle.open(), config, host, images, *folders, watch.running)
        _record(trained, config.name, cls.hidden.unique_id)
        return _output(trained, config.name, cls)


NODES = [StreamCacheTrain, StreamCacheTrainOptions, StreamCacheRecipe]


@dataclass(frozen=True)
class Trained:
    """A finished or stopped training."""

    result: TrainResult
    run: Run
    curves: Curves


def train_lora(
    patcher: Any,
    dataset: Dataset,
    config: TrainConfig,
    host: HostSettings,
    images: SampleImages,
    loras: Path,
    runs: Path,
    watch: WatchRun,
) -> Trained:
    """Train on an open dataset. The LoRA is saved in `loras` under the run's name, with the step if it is stopped."""
    from ..host.model import make_denoiser  # on use: ComfyUI starts faster

    denoiser = make_denoiser(patcher, config, host, images.negative)
    config, decode = images.settings(_with_free_name(config, loras, runs)), images.decoder(denoiser)
    prompts, watch = images.find_prompts(dataset), with_forecast(watch, denoiser, dataset, config)
    result, run = train_in_run(
        denoiser, dataset, config, runs, lambda run: loras / f"{run.name}.safetensors", watch, decode, prompts
    )
    return Trained(result, run, read_curves(run.metrics))


def _inputs() -> list[io.Input]:
    return [
        io.Model.Input("model", tooltip="The model to train on. It is neither changed nor copied."),
        sockets.Dataset.Input(
            "dataset",
            optional=True,
            tooltip="A saved dataset, or a plan from Encode Dataset, which is first saved under the name of the run.",
        ),
        io.Latent.Input("latents", optional=True, tooltip="Latents from other nodes, instead of a dataset."),
        io.Conditioning.Input("conditioning", optional=True, tooltip="The conditioning of each of these latents."),
        io.Vae.Input("vae", optional=True, tooltip="Connect a VAE to see sample images while the LoRA trains."),
        sockets.words(
            "prompts", "Prompts for sample images, also as text, one per line; if empty, captions of the dataset."
        ),
        sockets.words("negative", "Negative prompt for sample images; if empty, the empty caption of the dataset."),
        sockets.Options.Input("options", optional=True, tooltip="From Train Options; overrides the settings below."),
        *setting_inputs.main_inputs(),
        *setting_inputs.further_inputs(advanced=True),
        io.LoraModel.Input(
            "training_lora",
            optional=True,
            tooltip="A training adapter from another node, instead of the file in training_adapter.",
        ),
        io.Clip.Input("clip", optional=True, tooltip="Encodes prompts that are text: once, before the training."),
    ]


def _outputs() -> list[io.Output]:
    return [
        io.LoraModel.Output("lora", display_name="lora", tooltip="For ComfyUI's Load LoRA Model and Save LoRA."),
        io.LossMap.Output("loss_map", display_name="loss_map", tooltip="For ComfyUI's Plot Loss Graph."),
        io.String.Output("path", display_name="path", tooltip="The path of the saved LoRA file."),
        io.Image.Output("plot", display_name="loss_plot", tooltip="The loss curve."),
    ]


def _with_training_lora(config: TrainConfig, lora: Mapping[str, Any] | None) -> TrainConfig:
    """A connected LoRA becomes a file: a run that resumes can tell whether it is the same."""
    if lora is None:
        return config
    if config.training_adapter:
        raise TrainError("a LoRA is connected to training_lora, and training_adapter names a file; keep one of the two")
    return replace(config, training_adapter=str(store_lora(lora)))


def _check_name(name: str, *, new: bool = False) -> None:
    """The name of a run is the name of a folder and of a file, valid on every system and inside its root."""
    check_run_name(name, new=new)
    contained(lora_folder(), [f"{parse_name(name)[0]}.safetensors"], name)
    contained(runs_folder(), [name], name)


def _saved(given: Given, name: str, watch: TrainWatch, rehearse: Callable[[Plan | None], None]) -> DatasetHandle:
    """A dataset to train on: a saved one as it is, anything else saved under the run's name.

    A plan that was encoded before, for any run or by a node that saves, is not encoded again.
    """
    check_given(given, "train on")
    dataset = given.dataset
    if dataset is not None and dataset.encoded is True:
        return dataset
    path, purpose = path_to_save(name, cache_roots()), made_for_run(name)
    before = read_manifest(path)
    own = before is not None and purpose.items() <= before.provenance.items()
    plan = dataset.plan() if dataset is not None else None
    ready = encoded_before(plan, path, cache_roots()) if plan is not None else None
    if ready is not None and not (own and ready.path == path):
        watch.notes = [f"Trains on the cache {ready.name}, which has these samples already"]
        return ready
    if before is not None and not own:
        raise CacheError(
            f"the cache {name} exists and was not made for this training; give the training another name, or save the "
            "dataset with Streamable Cache Save first and train on that"
        )
    if ready is None:
        rehearse(plan)
    saved = save(given, name, path, watch.node, purpose)
    watch.notes = saved.facts.get("warnings", [])
    caches_changed()
    return saved.handle


def _rehearse(patcher: Any, plan: Plan | None, config: TrainConfig, host: HostSettings, images: SampleImages) -> None:
    """Find out now, and not after hours of encoding, that the run, the model or the settings do not fit."""
    from ..host.model import make_denoiser  # on use: ComfyUI starts faster

    with open_run(runs_folder(), config.name, config.mode) as run:
        if plan is not None:
            denoiser = make_denoiser(patcher, config, host, images.negative)
            out = lora_folder() / f"{run.name}.safetensors"
            rehearse(denoiser, plan, images.settings(config), run, images.decoder(denoiser), images.prompts, out)


def _describe_left(config: TrainConfig) -> list[str]:
    """A new run beside one of this name that was stopped: how to go on with that one instead."""
    found = latest_run(runs_folder(), config.name) if config.mode == "new" else None
    if found is None:
        return []
    facts = read_run_json(runs_folder() / found)
    step, steps, status = facts.get("step"), facts.get("steps"), facts.get("status")
    killed = status == "running" and not is_run_locked(runs_folder() / found)
    numbers = isinstance(step, int) and isinstance(steps, int) and 0 < step < steps
    if not (numbers and (killed or status in LEFT)):
        return []
    return [
        f"{found} was stopped at step {step:,} of {steps:,}, and this is a new run. To go on with it instead, "
        f"set mode = resume and name = {found}; to start it again, mode = overwrite"
    ]


def _with_free_name(config: TrainConfig, loras: Path, runs: Path) -> TrainConfig:
    """A new run never replaces an existing LoRA: it and its folder are called my_lora-2, and so on."""
    check_run_name(config.name)
    exports = bool(config.export_every or config.export_epochs)
    if config.mode != "new":
        return config

    def is_free(name: str) -> bool:
        lora = loras / f"{name}.safetensors"
        taken = os.path.lexists(loras / spelled(loras, lora.name)) or (exports and bool(find_exports(lora)))
        return not taken and can_begin(runs / spelled(runs, name))

    return replace(config, name=free_name(config.name, is_free))


def _record(trained: Trained, name: str, node_id: Any) -> None:
    """The result is fresh while its LoRA file is unchanged; that of a stopped run never is."""
    file = trained.result.lora
    state = None if trained.result.stopped else lora_stamp(file)
    record_result(runs_folder() / name, caller_of(node_id), state, lambda: lora_stamp(file))


def _output(trained: Trained, name: str, cls: type) -> io.NodeOutput:
    result, losses = trained.result, trained.curves.losses
    plot = sockets.image(plot_loss(losses, trained.curves.validation))
    words = _describe_end(result, trained.run.name, name)
    lines = [words, *describe_files(result), read_run_json(trained.run.folder).get("notes", "")]
    facts = {
        "run": trained.run.name,
        "lora": result.lora.name,
        "stopped": result.stopped,
        "step": result.step,
        "steps": result.steps,
        "words": words,
        "exports": [file.name for file in result.exports],
    }
    files = trained_files(result, trained.run, lora_folder().parent)
    shown = files if files["images"] else {**files, **ui.PreviewImage(plot, cls=cls).as_dict()}
    return io.NodeOutput(
        comfy.utils.load_torch_file(str(result.lora), safe_load=True),
        {"loss": [loss for _, loss in losses]},
        str(result.lora),
        plot,
        ui={**shown, "text": ["\n".join(filter(None, lines))], "streamcache": [facts]},
    )


def _describe_end(result: TrainResult, run: str, name: str) -> str:
    """How a training ended. `run` differs from the `name` on the node if that was taken."""
    if not result.stopped:
        share = f"{result.data_wait:.1%} of training waiting for data"
        return f"{result.step:,} of {result.steps:,} steps, {share}: {result.lora.name}"
    setting = f" and name = {run}" if run != name else ""
    saved = f"Stopped at step {result.step:,} of {result.steps:,}; the unfinished LoRA is saved as {result.lora.name}."
    return f"{saved} To continue, run again with mode = resume{setting}"
