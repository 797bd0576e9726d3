"""The parts of a run, new or resumed: changed settings apply, or they are refused with the reason."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from streamcache.errors import TrainError
from streamcache.lora_train.config import TrainConfig
from streamcache.lora_train.loop import TrainHooks
from streamcache.lora_train.optimizers.optim import available
from streamcache.lora_train.run.folder import open_run
from streamcache.lora_train.run.metrics import read_curves, read_metrics
from streamcache.lora_train.session import Session, open_session

from ..support.small_parts import SmallDenoiser, make_dataset, run_training
from .short_runs import FULL, assert_same_state, last_state

RATES = {"learning_rate": 1e-5, "weight_decay": 0.5, "beta1": 0.5, "beta2": 0.8, "epsilon": 1e-6}


def test_j6_a_file_names_the_optimizer_that_trained_it(tmp_path: Path) -> None:
    pytest.importorskip("pytorch_optimizer")
    for settings, name in (({"optimizer": "SGD"}, "SGD"), ({"other_optimizer": "Lion"}, "Lion")):
        folder = tmp_path / name
        result = run_training(folder, make_dataset(folder / "set"), steps=1, **settings)
        with safe_open(result.lora, "pt") as file:
            assert file.metadata()["ss_optimizer"] == name


@pytest.mark.parametrize(
    "setting", [{"lora_plus": 4.0}, {"scale_weight_norms": 1.0}], ids=lambda found: next(iter(found))
)
def test_j6_settings_for_lora_are_refused_if_a_file_without_one_continues(
    tmp_path: Path, setting: dict[str, float]
) -> None:
    dataset, files = make_dataset(tmp_path / "set"), {}
    for kind in ("lora", "loha"):
        files[kind] = str(run_training(tmp_path / kind, dataset, adapter=kind, steps=1, save_every=0).lora)
    run_training(tmp_path / "as LoRA", dataset, steps=1, start_from=files["lora"], **setting)
    message = (
        f"{next(iter(setting))} = .: only for LoRA; the layers of .*test.safetensors continue as LoHa; turn it off"
    )
    with pytest.raises(TrainError, match=message):
        run_training(tmp_path / "as LoHa", dataset, steps=1, start_from=files["loha"], **setting)


def rates_in_metrics(folder: Path) -> list[float]:
    return [row["learning_rate"] for row in read_metrics(folder / "runs/test/metrics.jsonl") if "loss" in row]


def moments(optimizer: Mapping[str, Any]) -> dict[str, dict[str, torch.Tensor]]:
    """What the optimizer keeps for each parameter, by the parameter's name."""
    return {
        name: optimizer["state"][number]
        for group in optimizer["param_groups"]
        for name, number in zip(group["names"], group["params"], strict=True)
        if number in optimizer["state"]
    }


def resumed(folder: Path, dataset: Any, **settings: Any) -> Session:
    """A resumed run before its next step."""
    values = {"steps": 6, "batch_size": 4, "rank": 2, "learning_rate": 1e-2, "accept_changes": True, **settings}
    with open_run(folder / "runs", "test", "resume") as run:
        return open_session(SmallDenoiser(), dataset, TrainConfig(**values), run)


@pytest.mark.parametrize("optimizer", available())
def test_changed_rates_decay_and_betas_apply_to_a_resumed_run(tmp_path, optimizer: str) -> None:
    dataset = make_dataset(tmp_path / "set")
    run_training(tmp_path, dataset, optimizer=optimizer, steps=4)
    before = last_state(tmp_path)
    run_training(tmp_path, dataset, mode="resume", optimizer=optimizer, steps=7, accept_changes=True, **RATES)
    found = last_state(tmp_path)
    expected = {"lr": 1e-5, "base_lr": 1e-5, "weight_decay": 0.5, "momentum": 0.5, "betas": (0.5, 0.8), "eps": 1e-6}
    for group in found.optimizer["param_groups"]:
        assert {name: group[name] for name in expected if name in group} == {
            name: value for name, value in expected.items() if name in group
        }
    assert rates_in_metrics(tmp_path) == pytest.approx([1e-2] * 4 + [1e-5] * 3)
    assert json.loads((tmp_path / "runs/test/run.json").read_text())["config"]["learning_rate"] == 1e-5
    if optimizer in ("AdamW", "Adam", "Adafactor", "SGD"):  # others move by their own estimate or average
        for name, value in found.adapter.items():
            assert (value - before.adapter[name]).abs().max() < 1e-3, name


@pytest.mark.parametrize("optimizer", available())
def test_a_resumed_optimizer_with_changed_rates_equals_one_whose_rates_change_on_the_way(
    tmp_path, monkeypatch, optimizer: str
) -> None:
    """All that an optimizer keeps besides its rates survives: moments, Prodigy's d, schedule-free averages."""
    from streamcache.lora_train import loop

    dataset = make_dataset(tmp_path / "set")
    changed = {"learning_rate": 5e-3, "weight_decay": 0.2}
    run_training(tmp_path / "a", dataset, optimizer=optimizer, steps=4)
    run_training(tmp_path / "a", dataset, mode="resume", optimizer=optimizer, steps=8, accept_changes=True, **changed)
    real = loop.set_rate
    seen = iter(range(100))

    def change_in_step_5(live, factor):
        if next(seen) == 4:
            for group in live.param_groups:
                group |= {"base_lr": 5e-3, "weight_decay": 0.2}
        return real(live, factor)

    monkeypatch.setattr(loop, "set_rate", change_in_step_5)
    run_training(tmp_path / "b", dataset, optimizer=optimizer, steps=8)
    one, other = last_state(tmp_path / "a"), last_state(tmp_path / "b")
    assert all(torch.equal(one.adapter[name], other.adapter[name]) for name in other.adapter)
    assert one.optimizer["param_groups"] == other.optimizer["param_groups"]


def test_prodigys_estimate_survives_a_changed_rate(tmp_path) -> None:
    pytest.importorskip("prodigyopt")
    dataset, settings = make_dataset(tmp_path / "set"), {"optimizer": "Prodigy", "learning_rate": 1.0}
    run_training(tmp_path, dataset, steps=12, **settings)
    before = last_state(tmp_path).optimizer["param_groups"][0]
    assert before["d"] > before["d0"]
    settings["learning_rate"] = 0.5
    after = resumed(tmp_path, dataset, **settings).stepper.optimizer.param_groups[0]
    assert (after["d"], after["k"], after["lr"]) == (before["d"], before["k"], 0.5)


def test_the_new_schedule_applies_to_a_resumed_run(tmp_path) -> None:
    dataset = make_dataset(tmp_path / "set")
    run_training(tmp_path, dataset, steps=4)
    schedule = {"learning_rate": 1e-3, "lr_schedule": "linear", "lr_floor": 0.5}
    run_training(tmp_path, dataset, mode="resume", steps=8, accept_changes=True, **schedule)
    assert rates_in_metrics(tmp_path)[4:] == pytest.approx([1e-3 * (1 - 0.5 * step / 8) for step in range(4, 8)])


@pytest.mark.parametrize("optimizer", sorted({"AdamW", "AdamWScheduleFree"} & set(available())))
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({}, {"up": 1e-4}),
        ({"up": 1e-4}, {}),
        ({"up": 1e-4}, {"down": 1e-3}),
        ({"up": 1e-4, "text": 1e-3}, {"up": 1e-3}),
    ],
)
def test_changed_group_rates_apply_and_every_parameter_keeps_its_own_moments(tmp_path, optimizer, old, new) -> None:
    dataset, settings = make_dataset(tmp_path / "set"), {"optimizer": optimizer, "targets": "all", "steps": 4}
    run_training(tmp_path, dataset, group_rates=old, **settings)
    before = last_state(tmp_path)
    after = resumed(tmp_path, dataset, group_rates=new, **settings).stepper.optimizer.state_dict()
    rates = {name: group["lr"] for group in after["param_groups"] for name in group["names"]}
    assert rates == {name: new.get(name.split(".")[1], 1e-2) for name in rates} and len(rates) == 6
    for name, kept in moments(before.optimizer).items():
        for part, value in kept.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(moments(after)[name][part])), (name, part)


def test_a_group_whose_rate_was_zero_is_trained_after_the_change(tmp_path) -> None:
    dataset = make_dataset(tmp_path / "set")
    run_training(tmp_path, dataset, steps=3, group_rates={"up": 0}, ema_decay=0.9)
    assert not any(name.startswith("up.") for name in last_state(tmp_path).adapter)
    run_training(tmp_path, dataset, mode="resume", steps=6, accept_changes=True, ema_decay=0.9)
    assert last_state(tmp_path).adapter["up.lora_up.weight"].abs().max() > 0


def test_a_momentum_that_was_zero_can_be_set(tmp_path) -> None:
    dataset = make_dataset(tmp_path / "set")
    for number, optimizer in enumerate(name for name in available() if not name.endswith("ScheduleFree")):
        settings = {"optimizer": optimizer, "accept_changes": True}
        run_training(tmp_path / str(number), dataset, steps=3, beta1=0.0, **settings)
        assert run_training(tmp_path / str(number), dataset, mode="resume", steps=6, beta1=0.9, **settings).step == 6


def test_a_naming_without_a_name_for_a_layer_is_refused_before_the_first_step(tmp_path) -> None:
    class Nameless(SmallDenoiser):
        def export_names(self, naming: str) -> dict[str, str]:
            names = super().export_names(naming)
            return {"up": names["up"]} if naming == "diffusers" else names

    denoiser = Nameless()
    with pytest.raises(TrainError, match=r"has no name for 1 of 2 layers .*\(down, …\); choose comfyui or kohya"):
        run_training(tmp_path, make_dataset(tmp_path / "set"), denoiser, naming="diffusers")
    assert not denoiser.calls


def test_the_saved_lora_has_the_averaged_weights(tmp_path) -> None:
    file = load_file(run_training(tmp_path, make_dataset(tmp_path / "set"), ema_decay=0.9).lora)
    state = last_state(tmp_path)
    for name in ("up", "down"):
        found = file[f"diffusion_model.{name}.lora_up.weight"]
        assert torch.equal(found, state.ema[f"adapters.{name}.factors.up"])
        assert not torch.equal(found, state.adapter[f"{name}.lora_up.weight"])


@pytest.mark.parametrize("optimizer", [name for name in available() if name.endswith("ScheduleFree")])
def test_the_average_of_a_schedule_free_run_survives_a_changed_beta1(tmp_path, optimizer: str) -> None:
    """Its weights in a state lie between the average and the last step, as far as beta1 says."""
    dataset, settings = make_dataset(tmp_path / "set"), {"optimizer": optimizer, "steps": 6}
    before = load_file(run_training(tmp_path, dataset, **settings).lora)
    session = resumed(tmp_path, dataset, beta1=0.5, **settings)
    with session.at_rest():
        after = {f"diffusion_model.{name}": value.clone() for name, value in session.network.tensors().items()}
    assert after.keys() == before.keys()
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer": "SGD"},
        {"optimizer_args": {"amsgrad": True}},
        {"rank": 3},
        {"alpha": 1.0},
        {"adapter": "loha"},
        {"dora": True},
        {"targets": "all"},
        {"rank_stabilised": True},
    ],
)
@pytest.mark.parametrize("accept", [False, True])
def test_what_a_state_cannot_take_over_is_refused_with_the_reason(tmp_path, change: dict, accept: bool) -> None:
    dataset = make_dataset(tmp_path / "set")
    run_training(tmp_path, dataset, steps=4)
    before = json.loads((tmp_path / "runs/test/run.json").read_text())["config"]
    name = next(iter(change))
    with pytest.raises(TrainError, match=rf'step 4.*{name}: was .* cannot change.*set it back, or mode = "new"'):
        run_training(tmp_path, dataset, mode="resume", steps=8, accept_changes=accept, **change)
    assert json.loads((tmp_path / "runs/test/run.json").read_text())["config"] == before


def test_j6_an_argument_of_the_optimizer_cannot_be_removed_in_a_run(tmp_path) -> None:
    dataset = make_dataset(tmp_path / "set")
    run_training(tmp_path, dataset, steps=4, optimizer_args={"amsgrad": True})
    with pytest.raises(TrainError, match=r"optimizer_args: was {'amsgrad': True}, is {}. This cannot change in a run"):
        run_training(tmp_path, dataset, mode="resume", steps=4, accept_changes=True)
    run_training(tmp_path, dataset, mode="resume", steps=5, optimizer_args={"amsgrad": True})


@contextmanager
def unnamed_parameters(monkeypatch) -> Iterator[None]:
    """States as earlier versions saved them: without the names of parameters."""
    from streamcache.lora_train.adapters import Network

    real = Network.parameter_groups

    def unnamed(self, *rates):
        return [{key: value for key, value in group.items() if key != "names"} for group in real(self, *rates)]

    with monkeypatch.context() as former:
        former.setattr(Network, "parameter_groups", unnamed)
        yield


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"group_rates": {"text": 1e-3}}, {"group_rates": {"down": 1e-3}}),
        (
            {"group_rates": {"text": 1e-3, "up": 1e-2}},
            {"group_rates": {"text": 1e-3, "up": 1e-2}, "learning_rate": 1e-3},
        ),
        ({}, {"group_rates": {"text": 0.0}}),
    ],
)
def test_a_state_without_parameter_names_refuses_other_groups(tmp_path, monkeypatch, old: dict, new: dict) -> None:
    """Groups of the same sizes are not the same groups."""
    dataset = make_dataset(tmp_path / "set")
    with unnamed_parameters(monkeypatch):
        run_training(tmp_path, dataset, targets="all", steps=4, **old)
    changed = "learning_rate" if "learning_rate" in new else "group_rates"
    with pytest.raises(TrainError, match=rf'step 4.*{changed}: was .* cannot change.*set it back, or mode = "new"'):
        run_training(tmp_path, dataset, mode="resume", targets="all", steps=8, accept_changes=True, **new)
    run_training(tmp_path, dataset, mode="resume", targets="all", steps=8, **old)


def test_a_state_without_parameter_names_takes_another_learning_rate(tmp_path, monkeypatch) -> None:
    dataset = make_dataset(tmp_path / "set")
    with unnamed_parameters(monkeypatch):
        run_training(tmp_path, dataset, steps=4)
    run_training(tmp_path, dataset, mode="resume", steps=7, accept_changes=True, learning_rate=1e-5)
    assert rates_in_metrics(tmp_path) == pytest.approx([1e-2] * 4 + [1e-5] * 3)


def test_a_state_of_an_earlier_version_without_parameter_names_resumes(tmp_path, monkeypatch) -> None:
    dataset, asked = make_dataset(tmp_path / "set"), iter(range(100))
    run_training(tmp_path / "whole", dataset, steps=8)
    with unnamed_parameters(monkeypatch):
        run_training(tmp_path / "cut", dataset, hooks=TrainHooks(stop=lambda: next(asked) == 5), steps=8)
    assert "names" not in last_state(tmp_path / "cut").optimizer["param_groups"][0]
    run_training(tmp_path / "cut", dataset, mode="resume", steps=8)
    files = [load_file(tmp_path / part / "runs/test/test.safetensors") for part in ("whole", "cut")]
    assert all(torch.equal(files[0][name], files[1][name]) for name in files[0])


def test_interrupted_and_resumed_equals_uninterrupted(tmp_path) -> None:
    dataset = make_dataset(tmp_path / "set")

    def interrupt(progress) -> None:
        if progress.step == 7:
            raise KeyboardInterrupt

    run_training(tmp_path / "whole", dataset, **FULL)
    with pytest.raises(KeyboardInterrupt):
        run_training(tmp_path / "cut", dataset, hooks=TrainHooks(progress=interrupt), **FULL)
    assert last_state(tmp_path / "cut").step == 7
    assert json.loads((tmp_path / "cut/runs/test/run.json").read_text())["status"] == "interrupted"
    run_training(tmp_path / "cut", dataset, mode="resume", **FULL)
    assert_same_state(last_state(tmp_path / "whole"), last_state(tmp_path / "cut"))
    for name in ("losses", "validation"):
        curves = [read_curves(tmp_path / part / "runs/test/metrics.jsonl") for part in ("whole", "cut")]
        assert getattr(curves[0], name) == getattr(curves[1], name)


@pytest.mark.parametrize("optimizer", available())
def test_every_installed_optimizer_resumes_exactly(tmp_path, optimizer: str) -> None:
    dataset = make_dataset(tmp_path / "set")
    settings = {"optimizer": optimizer, "steps": 8, "validation_share": 0.1, "validation_every": 2}
    asked = iter(range(100))
    run_training(tmp_path / "whole", dataset, **settings)
    run_training(tmp_path / "cut", dataset, hooks=TrainHooks(stop=lambda: next(asked) == 5), **settings)
    run_training(tmp_path / "cut", dataset, mode="resume", **settings)
    assert_same_state(last_state(tmp_path / "whole"), last_state(tmp_path / "cut"))


def test_caption_dropout_takes_the_cached_empty_caption(tmp_path) -> None:
    denoiser = SmallDenoiser()
    run_training(tmp_path, make_dataset(tmp_path / "set"), denoiser, steps=60, caption_dropout=0.25)
    texts = torch.cat([call["text"][:, 0, 0] for call in denoiser.calls])
    assert 0.15 < (texts == -1).float().mean() < 0.35


def test_caption_dropout_without_a_cached_empty_caption_is_refused(tmp_path) -> None:
    with pytest.raises(TrainError, match="caption_dropout = 0.1: the dataset has no encoded empty caption"):
        run_training(tmp_path, make_dataset(tmp_path / "set", empty=False), caption_dropout=0.1)


def test_a_finished_run_that_is_resumed_does_nothing_more(tmp_path) -> None:
    dataset = make_dataset(tmp_path / "set")
    run_training(tmp_path, dataset)
    denoiser = SmallDenoiser()
    assert run_training(tmp_path, dataset, denoiser, mode="resume").step == 6 and not denoiser.calls


def test_a_longer_run_continues_from_a_finished_one(tmp_path) -> None:
    dataset = make_dataset(tmp_path / "set")
    run_training(tmp_path / "a", dataset, steps=6)
    run_training(tmp_path / "a", dataset, mode="resume", steps=9)
    run_training(tmp_path / "b", dataset, steps=9)
    assert_same_state(last_state(tmp_path / "a"), last_state(tmp_path / "b"))


def test_resuming_with_a_changed_dataset_is_refused_or_accepted_on_request(tmp_path) -> None:
    run_training(tmp_path, make_dataset(tmp_path / "set", 24))
    grown = make_dataset(tmp_path / "set", 30)
    with pytest.raises(TrainError, match="dataset: content was .* is "):
        run_training(tmp_path, grown, mode="resume", steps=9)
    assert run_training(tmp_path, grown, mode="resume", steps=9, accept_changes=True).step == 9
