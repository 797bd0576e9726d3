"""Scenario: complete trainings by the node Train LoRA, on both families of files, with ComfyUI's own nodes."""

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch._subclasses.fake_tensor import FakeTensor

from .claims import claim, hold
from .denoiser_claims import fingerprint, write
from .families import FAMILIES, Loaded, call, encode, load

SETTINGS = {"steps": 4, "batch_size": 2, "rank": 2, "learning_rate": 0.01, "seed": 5, "targets": "attention"}


@dataclass
class Case:
    """A family, a saved dataset of four samples, and its handle."""

    name: str
    models: Loaded
    latents: list[dict]
    conditionings: list[list]
    handle: Any


def run(base: Path) -> dict:
    outcome: dict[str, Any] = {}
    for name in FAMILIES:
        began = time.perf_counter()
        outcome[name] = hold("training_claims", globals(), make_case(name))
        outcome[name]["seconds"] = time.perf_counter() - began
    return outcome


def make_case(name: str) -> Case:
    from streamcache.nodes.host.app.folders import cache_roots
    from streamcache.nodes.library.handles import handle_of

    models = load(name)
    latents, conditionings = encode(models)
    latents = [latents[0], latents[1], latents[2], call("LatentFlip", samples=latents[0], flip_method="x-axis")[0]]
    conditionings = [*conditionings, call("CLIPTextEncode", clip=models.clip, text="a house by the sea")[0]]
    path = cache_roots()[0] / name
    write(path, latents, conditionings)
    return Case(name, models, latents, conditionings, handle_of(name, path))


def train(case: Case, label: str, **changes: Any) -> Any:
    """The result of the node. As in ComfyUI, every input is a list."""
    from streamcache.nodes.training.train import StreamCacheTrain

    inputs = {"model": case.models.model, "dataset": case.handle, **SETTINGS, "name": f"{case.name}-{label}", **changes}
    lists = {"latents", "conditioning", "prompts"}
    given = {key: value if key in lists else [value] for key, value in inputs.items() if value is not None}
    return StreamCacheTrain.PREPARE_CLASS_CLONE(None).execute(**given).args


def read(path: str) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    with safe_open(path, framework="pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, file.metadata()  # noqa: SIM118


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def sample(case: Case, model: Any, seed: int = 1) -> torch.Tensor:
    (latent,) = call(
        "KSampler", model=model, seed=seed, steps=2, cfg=4.0, sampler_name="euler", scheduler="simple",
        positive=case.conditionings[0], negative=case.conditionings[2],
        latent_image={"samples": torch.zeros_like(case.latents[0]["samples"])}, denoise=1.0,
    )  # fmt: skip
    return latent["samples"]


def interrupted_after(case: Case, steps: int, name: str, **changes: Any) -> None:
    """Press stop while step `steps` is reported; ComfyUI's interrupt must be raised."""
    import comfy.model_management as management

    from streamcache.nodes.training import watch as train_watch

    own: Callable[..., None] = train_watch.TrainWatch.step

    def pressing(watch: Any, progress: Any) -> None:
        own(watch, progress)
        if progress.step == steps:
            management.interrupt_current_processing()

    train_watch.TrainWatch.step = pressing
    try:
        train(case, name, **changes)
    except management.InterruptProcessingException:
        return
    finally:
        train_watch.TrainWatch.step = own
    raise AssertionError("the stop button did nothing")


def run_facts(case: Case, name: str) -> dict[str, Any]:
    from streamcache.nodes.host.app.folders import runs_folder

    return json.loads((runs_folder() / f"{case.name}-{name}" / "run.json").read_text(encoding="utf-8"))


@claim
def a_lora_is_where_the_host_looks_with_its_losses_and_metadata(case: Case) -> None:
    import folder_paths

    lora, losses, path, plot = train(case, "plain")
    assert f"{case.name}-plain.safetensors" in folder_paths.get_filename_list("loras")
    tensors, metadata = read(path)
    assert equal(lora, tensors) and len(losses["loss"]) == 4
    assert plot.shape[0] == 1 and plot.shape[3] == 3 and plot.min() >= 0 and plot.max() <= 1
    assert metadata["ss_dataset_id"] == case.handle.open().id and metadata["ss_steps"] == "4"
    assert metadata["ss_seed"] == "5" and metadata["modelspec.sai_model_spec"]
    assert {float(v) for k, v in tensors.items() if k.endswith(".alpha")} == {2.0}, "alpha is not trained"
    assert all(v.abs().max() > 0 for k, v in tensors.items() if k.endswith("lora_up.weight"))


@claim
def through_lora_loader_the_image_is_that_of_the_live_adapter_and_without_strength_the_base_models(case: Case) -> None:
    from streamcache.nodes.host.model.denoiser import HostDenoiser

    seen: list[torch.Tensor] = []
    own = HostDenoiser.decode
    HostDenoiser.decode = lambda self, vae, latents: seen.append(latents.clone()) or own(self, vae, latents)
    try:
        train(
            case, "live", vae=case.models.vae, prompts=[case.conditionings[0]], negative=case.conditionings[2],
            sample_every=2, sample_steps=2, sample_seed=1, steps=4,
        )  # fmt: skip
    finally:
        HostDenoiser.decode = own
    base = sample(case, case.models.model)
    assert len(seen) == 3, "before, in the middle, at the end"
    torch.testing.assert_close(seen[0], base, rtol=1e-4, atol=1e-4)
    for strength, expected in ((1.0, seen[-1]), (0.0, base)):
        model = call(
            "LoraLoader", model=case.models.model, clip=case.models.clip, lora_name=f"{case.name}-live.safetensors",
            strength_model=strength, strength_clip=0.0,
        )[0]  # fmt: skip
        torch.testing.assert_close(sample(case, model), expected, rtol=1e-3, atol=1e-3)
    assert (seen[-1] - base).abs().max() > 0.02, "the LoRA does something"
    assert torch.equal(sample(case, case.models.model), base), "the model itself is as before"


@claim
def sample_events_distinguish_the_images_of_an_overwritten_run(case: Case) -> None:
    from streamcache.nodes.host.app.folders import runs_folder
    from streamcache.nodes.server.runs import list_samples
    from streamcache.nodes.training import watch as train_watch

    own, seen = train_watch.send_event, []
    pictures = {"vae": case.models.vae, "sample_every": 1, "sample_steps": 1, "steps": 1}
    for _ in range(2):
        told: list[dict[str, Any]] = []
        train_watch.send_event = lambda event, facts, *_, told=told: told.append({"event": event, **facts})
        try:
            train(case, "pictures", mode="overwrite", **pictures)
        finally:
            train_watch.send_event = own
        keys = ("step", "prompt", "file", "mtime")
        samples = [{key: each[key] for key in keys} for each in told if each["event"] == train_watch.SAMPLE_EVENT]
        assert samples == list_samples(runs_folder() / f"{case.name}-pictures" / "samples") and len(samples) == 2
        live = [each["live"] for each in told if each["event"] == train_watch.EVENT]
        assert live[0] and live.count(False) == 1 and not live[-1], live
        seen.append({(each["file"], each["mtime"]) for each in samples})
    assert not seen[0] & seen[1]


@claim
def kohyas_naming_gives_the_same_result(case: Case) -> None:
    images = []
    for naming in ("comfyui", "kohya"):
        lora = train(case, f"named {naming}", naming=naming)[0]
        model = call("LoraModelLoader", model=case.models.model, lora=lora, strength_model=1.0, bypass=False)[0]
        images.append(sample(case, model))
    torch.testing.assert_close(*images, rtol=1e-5, atol=1e-6)
    assert (images[0] - sample(case, case.models.model)).abs().max() > 0.02


@claim
def the_same_seed_gives_the_same_lora_bit_for_bit_and_another_seed_another(case: Case) -> None:
    state = torch.get_rng_state()
    first, second, other = train(case, "seed a")[0], train(case, "seed b")[0], train(case, "seed c", seed=6)[0]
    assert equal(first, second) and not equal(first, other)
    assert torch.equal(torch.get_rng_state(), state), "the global generator is unchanged"


@claim
def interrupted_and_resumed_equals_uninterrupted_and_stopping_takes_one_step(case: Case) -> None:
    import comfy.model_management as management

    weights = fingerprint(case.models.model.model)
    whole = train(case, "whole")[0]
    interrupted_after(case, 2, "parts")
    facts = run_facts(case, "parts")
    assert facts["status"] == "interrupted" and facts["step"] == 2, facts
    assert not management.in_training and fingerprint(case.models.model.model) == weights
    call("LoraLoader", model=case.models.model, clip=None, lora_name=f"{case.name}-parts-step00000002.safetensors",
         strength_model=1.0, strength_clip=0.0)  # fmt: skip
    lora, losses, *_ = train(case, "parts", mode="resume")
    assert equal(lora, whole) and len(losses["loss"]) == 4


@claim
def after_an_error_the_model_samples_as_before_and_the_work_is_kept(case: Case) -> None:
    from streamcache.nodes.training import watch as train_watch

    before = sample(case, case.models.model)
    own = train_watch.TrainWatch.step

    def failing(watch: Any, progress: Any) -> None:
        if progress.step == 3:
            raise RuntimeError("as if out of memory")
        own(watch, progress)

    train_watch.TrainWatch.step = failing
    try:
        train(case, "failed")
    except RuntimeError as error:
        assert "as if" in str(error)
    finally:
        train_watch.TrainWatch.step = own
    assert run_facts(case, "failed")["step"] == 3
    assert torch.equal(sample(case, case.models.model), before)


@claim
def a_run_whose_resume_fails_stays_interrupted(case: Case) -> None:
    from streamcache.nodes.host.app.folders import runs_folder
    from streamcache.nodes.server import routes
    from streamcache.nodes.training import watch as train_watch

    interrupted_after(case, 2, "killed", save_every=1)
    name = f"{case.name}-killed"
    file = runs_folder() / name / "run.json"
    file.write_text(json.dumps({**run_facts(case, "killed"), "status": "running"}), encoding="utf-8")
    told: list[dict[str, Any]] = []
    own = train_watch.send_event
    train_watch.send_event = lambda event, facts, *_: told.append({**facts, "row": row_of(routes, name)})
    try:
        train(case, "killed", mode="resume", rank=4)
    except ValueError as error:
        assert "rank" in str(error), error
    else:
        raise AssertionError("another rank was taken")
    finally:
        train_watch.send_event = own
    assert told == [], "nothing began"
    assert run_facts(case, "killed")["status"] == "running", "run.json is as it was"
    assert row_of(routes, name)["status"] == "interrupted"


def row_of(routes: Any, name: str) -> dict[str, Any]:
    return next(row for row in routes._runs().rows() if row["name"] == name)


@claim
def lists_from_stock_nodes_are_saved_under_the_runs_name_and_train_the_same(case: Case) -> None:
    from streamcache.nodes.host.app.folders import cache_roots

    expected = train(case, "by handle")[0]
    found = train(case, "lists", dataset=None, latents=case.latents, conditioning=case.conditionings)[0]
    assert (cache_roots()[0] / f"{case.name}-lists" / "dataset.json").is_file()
    assert equal(found, expected)
    assert any(value.abs().max() > 0 for key, value in found.items() if key.endswith("lora_up.weight"))


@claim
def a_batch_of_four_is_one_call_of_four_rows_where_cores_node_sees_sixteen(case: Case) -> None:
    rows = counted_rows(case, lambda: train(case, "rows", dataset=same_shape(case), batch_size=4, steps=2))
    assert rows == [1, 1, 4, 4], f"two trial calls, then two steps: {rows}"
    assert 16 in counted_rows(case, lambda: core_train(case, 4)), "core has changed: update the documentation"


def same_shape(case: Case) -> Any:
    """The handle of a dataset of four samples of one shape."""
    from streamcache.nodes.library.handles import handle_of

    path = case.handle.path.parent / f"{case.name}-one-shape"
    latents = [case.latents[0], case.latents[1], case.latents[3], case.latents[0]]
    write(path, latents, case.conditionings)
    return handle_of(path.name, path)


def counted_rows(case: Case, work: Callable[[], Any]) -> list[int]:
    kind = type(case.models.model.model.diffusion_model)
    rows, own = [], kind.forward

    def counting(self: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(x, FakeTensor):  # the forecast of memory computes without data
            rows.append(len(x))
        return own(self, x, *args, **kwargs)

    kind.forward = counting
    try:
        work()
    finally:
        kind.forward = own
    return rows


def core_train(case: Case, batch_size: int) -> Any:
    scalars = {
        "model": case.models.model, "batch_size": batch_size, "steps": 1, "grad_accumulation_steps": 1,
        "learning_rate": 0.001, "rank": 2, "optimizer": "AdamW", "loss_function": "MSE", "seed": 5,
        "training_dtype": "bf16", "lora_dtype": "fp32", "quantized_backward": False, "algorithm": "LoRA",
        "gradient_checkpointing": False, "checkpoint_depth": 1, "offloading": False, "existing_lora": "[None]",
        "bucket_mode": False, "bypass_mode": False,
    }  # fmt: skip
    latents = [case.latents[0], case.latents[1], case.latents[3], case.latents[0]]
    lists = {key: [value] for key, value in scalars.items()}
    return call("TrainLoraNode", latents=latents, positive=case.conditionings, **lists)


@claim
def one_step_has_a_plot_and_starts_with_down_random_and_up_zero(case: Case) -> None:
    lora, losses, _, plot = train(case, "one step", steps=1, learning_rate=1e-9)
    assert len(losses["loss"]) == 1 and plot.std() > 0
    assert all(v.abs().max() < 1e-6 for k, v in lora.items() if k.endswith("lora_up.weight"))
    assert all(v.std() > 1e-3 for k, v in lora.items() if k.endswith("lora_down.weight"))


@claim
def a_lora_of_any_name_is_continued_with_its_alpha_and_its_other_parts(case: Case) -> None:
    from safetensors.torch import save_file

    from streamcache.nodes.host.app.folders import lora_folder

    tensors = train(case, "start")[0]
    name = next(key.removesuffix(".alpha") for key in tensors if key.endswith(".alpha"))
    bias = torch.full((tensors[f"{name}.lora_up.weight"].shape[0],), 0.25)
    changed = {**tensors, f"{name}.alpha": torch.tensor(1.0), f"{name}.diff_b": bias}
    save_file(changed, lora_folder() / f"any name {case.name}.safetensors")
    again, _ = read(train(case, "continued", start_from=f"any name {case.name}.safetensors", steps=1)[2])
    assert float(again[f"{name}.alpha"]) == 1.0 and torch.equal(again[f"{name}.diff_b"], bias)
    moved = (again[f"{name}.lora_up.weight"] - tensors[f"{name}.lora_up.weight"]).abs().max()
    assert 0 < moved < 0.05, "it continues from there"


@claim
def a_cache_for_another_model_is_refused_with_both_numbers_before_the_first_step(case: Case) -> None:
    from streamcache.errors import TrainError
    from streamcache.nodes.library.handles import handle_of

    other = {"flow": 4, "eps": 16}[case.name]
    path = case.handle.path.parent / f"not-{case.name}"
    write(path, [{"samples": torch.zeros(1, other, 8, 8)}], case.conditionings[:1])
    try:
        train(case, "misfit", dataset=handle_of(path.name, path))
    except TrainError as refused:
        assert f"{other} channels" in str(refused) and str(20 - other) in str(refused)
    else:
        raise AssertionError("accepted")


@claim
def a_cache_deleted_after_loading_is_a_clear_error(case: Case) -> None:
    from streamcache.dataset_cache import CacheError
    from streamcache.nodes.library.handles import handle_of
    from streamcache.nodes.library.open_caches import close_idle

    path = case.handle.path.parent / f"gone-{case.name}"
    write(path, case.latents[:1], case.conditionings[:1])
    handle = handle_of(path.name, path)
    close_idle()
    shutil.rmtree(path)
    try:
        train(case, "gone", dataset=handle)
    except CacheError as refused:
        assert "gone" in str(refused)
    else:
        raise AssertionError("accepted")


@claim
def a_killed_run_is_offered_to_go_on_unless_another_program_trains_it(case: Case) -> None:
    from streamcache.lora_train import TrainConfig, open_run
    from streamcache.nodes.host.app.folders import runs_folder
    from streamcache.nodes.training.train import _describe_left

    name = f"{case.name}-cut-off"
    file = runs_folder() / name / "run.json"
    file.parent.mkdir(parents=True)
    config, facts = TrainConfig(name=name), {"status": "running", "step": 2, "steps": 4}
    file.write_text(json.dumps(facts), encoding="utf-8")
    assert f"{name} was stopped at step 2 of 4, and this is a new run" in _describe_left(config)[0]
    with open_run(runs_folder(), name, "resume"):
        assert _describe_left(config) == []
    for odd in ("2", None, [2]):
        file.write_text(json.dumps({**facts, "step": odd}), encoding="utf-8")
        assert _describe_left(config) == []


@claim
def options_override_the_node_and_old_names_still_load(case: Case) -> None:
    from streamcache.nodes.training.options import StreamCacheTrainOptions

    options = StreamCacheTrainOptions.execute(adapter="lokr", targets="attention").args[0]
    tensors = train(case, "options", options=options, learning_rate=None, lr=0.02)[0]
    assert any(".lokr_w1" in key for key in tensors)
    assert run_facts(case, "options")["config"]["learning_rate"] == 0.02


@claim
def i6_a_recipe_gives_way_to_options_and_to_what_is_changed_on_the_node(case: Case) -> None:
    from streamcache.nodes.training.options import StreamCacheTrainOptions
    from streamcache.nodes.training.recipe import StreamCacheRecipe

    options, words = StreamCacheRecipe.execute("sd15", "character", "none").args
    assert "rank = 16: " in words and 'lr_schedule = "cosine": ' in words
    options = StreamCacheTrainOptions.execute(options=options, lr_schedule="linear").args[0]
    train(case, "recipe", options=options)
    facts = run_facts(case, "recipe")
    config = facts["config"]
    assert config["weighting"] == "min_snr", "of the recipe"
    assert config["lr_schedule"] == "linear" and config["rank"] == 2 and config["steps"] == 4, "a person's own"
    assert "Recipe sd15/character; your own settings win: learning_rate = 0.01" in facts["notes"]


@claim
def i6_a_setting_of_a_recipe_that_does_not_fit_is_named_and_can_be_left_out(case: Case) -> None:
    from streamcache.errors import TrainError
    from streamcache.nodes.training.options import join_settings
    from streamcache.nodes.training.recipe import StreamCacheRecipe

    def joined(without: str) -> Any:
        options = StreamCacheRecipe.execute("sdxl", "style", "none", without=without).args[0]
        return join_settings({"guidance_target": 3.0}, options)

    config, _, notes = joined("caption_dropout")
    assert config.caption_dropout == 0 and config.rank == 32 and "without caption_dropout" in notes[0]
    try:
        joined("")
    except TrainError as refused:
        assert "; of the recipe: caption_dropout; to keep the default, name it in without" in str(refused), refused
    else:
        raise AssertionError("accepted")


@claim
def i6_the_recipe_of_a_model_is_that_of_its_family(case: Case) -> None:
    from streamcache.errors import TrainError
    from streamcache.nodes.training.recipe import StreamCacheRecipe

    if case.name == "eps":
        assert (
            "Recipe sd15/style" in StreamCacheRecipe.execute("auto", "style", "auto", model=case.models.model).args[1]
        )
    for model, words in (
        (None, "connect model, or choose a base"),
        (case.models.model, "choose the base that is most"),
    ):
        if model is not None and case.name == "eps":
            continue
        try:
            StreamCacheRecipe.execute("auto", "style", "auto", model=model)
        except TrainError as refused:
            assert words in str(refused), refused
        else:
            raise AssertionError("accepted")


@claim
def i6_the_klein_recipe_is_for_the_klein_models_and_not_for_dev(case: Case) -> None:
    from types import SimpleNamespace

    from comfy.supported_models import Flux2

    from streamcache.lora_train.recipes import base_for
    from streamcache.nodes.host.model import families_of

    def base(width: int) -> str | None:
        found = Flux2({"image_model": "flux2", "hidden_size": width})
        return base_for(families_of(SimpleNamespace(model=SimpleNamespace(model_config=found))))

    assert [base(width) for width in (3072, 4096, 6144)] == ["flux2_klein", "flux2_klein", None]


@claim
def i6_a_recipe_of_ones_own_is_chosen_by_name_from_the_user_folder(case: Case) -> None:
    import folder_paths

    from streamcache.errors import TrainError
    from streamcache.nodes.host.app.folders import RECIPES, list_recipes, register_recipes
    from streamcache.nodes.training.recipe import StreamCacheRecipe

    register_recipes()
    folder = Path(folder_paths.folder_names_and_paths[RECIPES][0][0])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{case.name}.toml").write_text('recipe = "sd15/style"\n[settings]\nrank = 7\n', encoding="utf-8")
    folder_paths.filename_list_cache.clear()
    assert f"{case.name}.toml" in list_recipes()
    options = StreamCacheRecipe.execute("auto", "none", "none", file=f"{case.name}.toml").args[0]
    assert options["recipe"].values()["rank"] == 7
    for name in ("../run.toml", "/etc/passwd", "missing.toml"):
        try:
            StreamCacheRecipe.execute("auto", "none", "none", file=name)
        except TrainError as refused:
            assert "choose one from the list" in str(refused)
        else:
            raise AssertionError(f"{name} was accepted")


@claim
def unknown_settings_and_names_outside_the_root_are_refused(case: Case) -> None:
    from streamcache.nodes.training.train import StreamCacheTrain

    try:
        train(case, "unknown", learning_rat=0.1)
    except ValueError as refused:
        assert "learning_rate" in str(refused), refused
    else:
        raise AssertionError("accepted")
    for name in ("../x", "/etc/x", "a/b", "C:x", "", "nul\0", ".hidden"):
        assert StreamCacheTrain.validate_inputs(name=[name]) is not True, name
        try:
            train(case, "attack", name=name)
        except ValueError:
            continue
        raise AssertionError(f"{name!r} was accepted")


@claim
def diffusers_naming_splits_fused_layers(case: Case) -> None:
    tensors = train(case, "diffusers", naming="diffusers")[0]
    first = "unet." if case.name == "eps" else "transformer."
    assert all(key.startswith(first) for key in tensors), list(tensors)[:3]
    assert not any("qkv" in key for key in tensors)


@claim
def diffusers_naming_is_refused_before_training_for_kinds_that_cannot_be_split(case: Case) -> None:
    from streamcache.errors import TrainError

    if case.name == "eps":  # which has no fused layers
        return
    try:
        train(case, "kron", naming="diffusers", adapter="lokr")
    except TrainError as refused:
        assert "qkv" in str(refused) and "lokr" in str(refused) and "choose comfyui" in str(refused)
    else:
        raise AssertionError("accepted")


@claim
def j4_a_training_adapter_trains_as_on_the_base_with_that_lora_and_is_not_in_the_file(case: Case) -> None:
    import comfy.sd

    taught = train(case, "taught", learning_rate=0.1)[0]
    merged, _ = comfy.sd.load_lora_for_models(case.models.model, None, taught, 1.0, 0.0)
    plain, adapted, expected = (
        train(case, f"base {number}", optimizer="SGD", learning_rate=0.1, **change)  # Adam would enlarge rounding
        for number, change in enumerate(({}, {"training_lora": taught}, {"model": merged}))
    )
    losses = [torch.tensor(result[1]["loss"]) for result in (plain, adapted, expected)]
    torch.testing.assert_close(losses[1], losses[2], rtol=1e-4, atol=1e-6)
    assert not torch.allclose(losses[0], losses[1], rtol=1e-3), "the adapter changes nothing"
    assert adapted[0].keys() == expected[0].keys()
    for key, value in expected[0].items():
        assert (adapted[0][key] - value).abs().max() <= 1e-3 * value.abs().max(), key


@claim
def a_new_run_replaces_nothing(case: Case) -> None:
    first, second = train(case, "twice", steps=1)[2], train(case, "twice", steps=1)[2]
    assert Path(first).stem == f"{case.name}-twice" and Path(second).stem == f"{case.name}-twice-2"


@claim
def i1_files_along_the_way_load_in_lora_loader_and_the_best_is_the_one_of_a_run_that_ends_there(case: Case) -> None:
    import folder_paths

    train(case, "ends", steps=2, ema_decay=0.5)
    _, _, path, _ = train(case, "along", export_every=2, ema_decay=0.5)
    name = f"{case.name}-along-000002.safetensors"
    assert name in folder_paths.get_filename_list("loras")
    along, _ = read(folder_paths.get_full_path("loras", name))
    ended, _ = read(folder_paths.get_full_path("loras", f"{case.name}-ends.safetensors"))
    assert equal(along, ended) and not equal(along, read(path)[0])
    (patched,) = call("LoraLoaderModelOnly", model=case.models.model, lora_name=name, strength_model=1.0)
    assert not torch.equal(sample(case, patched), sample(case, case.models.model))
    assert [fact["step"] for fact in run_facts(case, "along")["exports"]] == [2, 4]
    # A new run of this name takes another one: it would write the same files.
    Path(path).unlink()
    assert train(case, "along", steps=1)[2].endswith(f"{case.name}-along-2.safetensors")


@claim
def i4_the_host_reads_base_tags_and_preview_of_the_file(case: Case) -> None:
    from app.assets.services.metadata_extract import extract_file_metadata
    from app.model_manager import ModelFileManager

    _, _, path, _ = train(case, "told", vae=case.models.vae, sample_steps=1, steps=2, trigger_words="zxq cat")
    known = extract_file_metadata(path)
    assert known.base_model == {"flow": "sd3", "eps": "sd_v1"}[case.name], known.base_model
    assert known.trained_words is not None and len(known.trained_words) >= 1, known.trained_words
    (preview,) = ModelFileManager().get_model_previews(path)
    assert Path(str(preview)).name == f"{case.name}-told.preview.png"
    _, metadata = read(path)
    assert metadata["modelspec.trigger_phrase"] == "zxq cat"
    architecture = metadata["modelspec.architecture"]
    assert architecture == {"flow": "stable-diffusion-v3/lora", "eps": "stable-diffusion-v1/lora"}[case.name]


@claim
def i4_families_have_the_names_that_other_tools_know_and_a_new_one_its_own(case: Case) -> None:
    from streamcache.nodes.host.model.denoiser import HostDenoiser

    from .small_families import make_patcher

    expected = {
        "SDXL": ("stable-diffusion-xl-v1-base", "sdxl_base_v1-0"),
        "Flux": ("flux-1-dev", "flux1"),
        "Wan": ("wan2.1", "wan2.1"),
        "Qwen-Image": ("qwen-image", "qwen_image"),
        "Ernie": ("ernieimage", "ernieimage"),
    }
    for name, names in expected.items():
        denoiser = HostDenoiser(make_patcher(name))
        assert (denoiser.architecture, denoiser.base_version) == names, (name, denoiser.architecture)
