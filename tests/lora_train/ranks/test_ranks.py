"""Several ranks train the same LoRA as one process (rows G1 to G4 and G7), with real processes over gloo."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from streamcache.dataset_cache import CacheWriter, open_cache
from streamcache.lora_train.ranks import ALONE
from streamcache.lora_train.run.folder import read_run_json
from streamcache.lora_train.run.metrics import read_curves
from streamcache.lora_train.run.saved_state import SavedState, read_state
from streamcache.reference.model import load_model, save_model

from .worker import SCENARIOS

Launch = Callable[..., list[list[dict[str, Any]]]]
EQUAL = tuple(SCENARIOS)
FEW = EQUAL[:3]  # with 4 ranks, which take their time on few cores
TROUBLES = ("stop", "interrupt", "error", "nan")
# fp32: the sums of gradients round differently; after 6 steps of Adam. Measured: 2e-7 of weights, 8e-6 of the loss.
WEIGHTS, LOSSES = 2e-6, 5e-5
BF16, FP16 = 2e-3, 2e-3


@pytest.fixture(scope="session")
def alone(launch: Launch) -> list[dict[str, Any]]:
    longer = {"steps": 12, "deterministic": True}
    return launch(1, *[(name, f"{name}-1", {}) for name in EQUAL], ("full", "longer-1", longer))[0]


@pytest.fixture(scope="session")
def two(launch: Launch, parts: Path) -> list[list[dict[str, Any]]]:
    other_set(parts)
    other_model(parts)
    orders = [(name, f"{name}-2", {}) for name in EQUAL]
    orders += [("plain", "stop-2", {"only": {"1": {"stop_at": 3}}, "steps": 9})]
    orders += [
        ("plain", f"{kind}-2", {"only": {"1": {"trouble": [kind, 5]}}, "save_every": 3}) for kind in TROUBLES[1:]
    ]
    orders += [("plain", "differ-settings", {"only": {"1": {"learning_rate": 0.002}}})]
    orders += [("plain", "differ-set", {"only": {"1": {"set": "other set"}}})]
    orders += [("plain", "differ-base", {"only": {"1": {"base": "other.safetensors"}}})]
    orders += [("plain", "no-set", {"only": {"1": {"set": "missing"}}})]
    return launch(2, *orders)


@pytest.fixture(scope="session")
def four(launch: Launch) -> list[list[dict[str, Any]]]:
    return launch(
        4, *[(name, f"{name}-4", {}) for name in FEW], ("full", "moving", {"steps": 4, "deterministic": True})
    )


def other_set(folder: Path) -> None:
    dataset = open_cache(folder / "set")
    with CacheWriter(folder / "other set") as writer:
        for number in range(20):
            sample = dataset[number]
            writer.add(sample.latent, sample.conditioning, sample.caption)
        writer.put("nothing said", dataset[0].conditioning, "conditioning")
        writer.name("empty caption", "nothing said")


def other_model(folder: Path) -> None:
    model = load_model(folder / "base.safetensors")
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.01)
    save_model(folder / "other.safetensors", model)


def state(folder: Path, name: str) -> SavedState:
    return read_state(sorted((folder / "runs" / name / "states").glob("*.safetensors"))[-1])


def curves(folder: Path, name: str) -> tuple[list[Any], list[Any], list[Any]]:
    found = read_curves(folder / "runs" / name / "metrics.jsonl")
    return found.losses, found.validation, found.norms


def furthest(one: SavedState, other: SavedState) -> float:
    assert one.step == other.step and one.position == other.position and list(one.adapter) == list(other.adapter)
    parts = [(one.adapter, other.adapter), (one.ema, other.ema)]
    return max(float((a[name].float() - b[name].float()).abs().max()) for a, b in parts for name in a)


@pytest.mark.parametrize("scenario", EQUAL)
def test_g1_ranks_train_the_same_lora(parts: Path, alone: Any, two: Any, four: Any, scenario: str) -> None:
    weights, losses = {"bf16": (BF16, 2e-2), "fp16": (FP16, 2e-2)}.get(scenario, (WEIGHTS, LOSSES))
    first, curve = state(parts, f"{scenario}-1"), curves(parts, f"{scenario}-1")
    for size in (2, 4) if scenario in FEW else (2,):
        assert furthest(first, state(parts, f"{scenario}-{size}")) <= weights
        other = curves(parts, f"{scenario}-{size}")
        for own, found in zip(curve, other, strict=True):
            assert [step for step, _ in own] == [step for step, _ in found]
            assert all(abs(a - b) <= losses * max(1, abs(a)) for (_, a), (_, b) in zip(own, found))


def test_g1_deterministic_ranks_are_bit_equal(parts: Path, alone: Any, two: Any, four: Any) -> None:
    first = state(parts, "exact-1")
    assert first.ema and any(float(value.abs().max()) for name, value in first.adapter.items() if "up" in name)
    for size in (2, 4):
        assert furthest(first, state(parts, f"exact-{size}")) == 0
        assert curves(parts, f"exact-{size}") == curves(parts, "exact-1")
    assert furthest(first, state(parts, "full-1")) > 0, "otherwise row by row would change nothing"


@pytest.mark.slow
def test_g2_a_run_goes_on_with_another_number_of_ranks(parts: Path, alone: Any, four: Any, launch: Launch) -> None:
    """4 ranks → 2 → 3, as one process that never stopped: bit for bit."""
    own = {"deterministic": True, "mode": "resume"}
    launch(2, ("full", "moving", {"steps": 7, **own}))
    launch(3, ("full", "moving", {"steps": 12, **own}))
    assert furthest(state(parts, "longer-1"), state(parts, "moving")) == 0
    # Unlike one process, "moving" has ended three times, and each end is validated and exported.
    assert curves(parts, "moving")[0] == curves(parts, "longer-1")[0]


def test_g3_a_rank_reads_only_its_rows(alone: Any, two: Any, four: Any) -> None:
    for number, _ in enumerate(FEW):
        whole = alone[number]["latent bytes"]
        for ranks in (two, four):
            read = [outcomes[number]["latent bytes"] for outcomes in ranks]
            assert sum(read) == whole, "every row is read by one rank"
            assert max(read) <= whole / len(ranks) * 1.5


@pytest.mark.parametrize("kind", TROUBLES)
def test_g4_all_ranks_end_at_one_step_with_the_state_kept(parts: Path, two: Any, kind: str) -> None:
    number = len(EQUAL) + TROUBLES.index(kind)
    first, second = (outcomes[number] for outcomes in two)
    described = read_run_json(parts / "runs" / f"{kind}-2")
    if kind == "stop":
        assert first["stopped"] and second["stopped"] and first["step"] == second["step"] == 3
        assert described["status"] == "stopped" and state(parts, "stop-2").step == 3
        return
    names = {"interrupt": "KeyboardInterrupt", "error": "RankFailed", "nan": "NonFiniteLoss"}
    assert first["kind"] == names[kind]
    assert "rank 1" in first["error"]
    if kind == "error":
        assert "the disk of this rank is gone" in first["error"] and second["kind"] == "ValueError"
    kept = state(parts, f"{kind}-2")
    assert kept.step == (3 if kind == "nan" else 4)  # what is saved after a nan would be useless
    assert described["status"] == ("interrupted" if kind == "interrupt" else "failed")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("differ-settings", "setting learning_rate is 0.002, not 0.001"),
        ("differ-set", "rank 1 differs from rank 0: dataset generation is"),
        ("differ-base", "model layer"),
        ("no-set", "rank 1: "),
    ],
)
def test_g7_ranks_that_differ_are_refused_before_the_first_step(parts: Path, two: Any, name: str, words: str) -> None:
    number = len(EQUAL) + len(TROUBLES) + ["differ-settings", "differ-set", "differ-base", "no-set"].index(name)
    first = two[0][number]
    assert words in first["error"] and "rank 1" in first["error"]
    assert not (parts / "runs" / name).exists()


def test_only_rank_0_writes(parts: Path, two: Any) -> None:
    folder = parts / "runs" / "full-2"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4, 5, 6]
    assert {path.name for path in (parts / "runs").glob("full*")} == {"full-1", "full-2", "full-4"}
    assert len(list(folder.glob("samples/*.png"))) == 3 and (folder / "report.html").exists()


@pytest.mark.slow
def test_a_lost_rank_is_named_and_the_state_is_kept(parts: Path, launch: Launch) -> None:
    order = ("plain", "killed", {"only": {"1": {"trouble": ["kill", 5]}}})
    first, _ = launch(2, order, codes=False, STREAMCACHE_RANK_TIMEOUT="30")
    assert first[0]["kind"] == "RankLost" and "rank 1 does not answer" in first[0]["error"]
    assert state(parts, "killed").step == 4


def test_a_single_process_has_ranks_that_cost_nothing() -> None:
    values = torch.ones(3)
    assert ALONE.leads and ALONE.share(7) == (0, 7) and ALONE.add(values) is values and ALONE.any(True)
    assert ALONE.from_first("a") == "a" and ALONE.gather("a") == ["a"] and ALONE.owners(2) == [0, 0]
