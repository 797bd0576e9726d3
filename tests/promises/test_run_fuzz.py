"""Damaged files of a run, and damaged workflows: an error of the pack or the stored content, and nothing else."""

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from streamcache.cli.remote.comfy_server import read_message
from streamcache.cli.remote.run import apply_change, describe_outputs, node_label, read_workflow
from streamcache.dataset_cache import CacheError
from streamcache.errors import TrainError
from streamcache.lora_train.config import TrainConfig
from streamcache.lora_train.run.metrics import MetricsFile, read_curves
from streamcache.lora_train.run.saved_state import SavedState, StateFolder, StateOrigin, pack, read_state
from streamcache.nodes.server.curves import CurveReader

from ..support.mutations import MUTATIONS, mutate, swap_lines

ROUNDS = 400
ODD: list[Any] = [None, True, -1, 1 << 70, 1.5, "", "x", [], {}, [[]], {"a": 1}, [1, "a"], ["tensor", "x"], ["dict", 3]]


def make_state(step: int = 5) -> SavedState:
    random = torch.Generator().manual_seed(step)
    return SavedState(
        step=step,
        position=10,
        epoch_length=7,
        origin=StateOrigin("d1", "g1", TrainConfig().to_dict()),
        adapter={"a.lora_up.weight": torch.randn(3, 2, generator=random).bfloat16(), "a.alpha": torch.tensor(2.0)},
        optimizer={"state": {0: {"step": torch.tensor(1.0)}}, "param_groups": [{"betas": (0.9, 0.99), "params": [0]}]},
        ema={"~updates": torch.tensor(4), "mask": torch.tensor([True, False])},
    )


def content(state: SavedState) -> str:
    tree, tensors = pack({**vars(state), "origin": vars(state.origin)})
    return json.dumps([tree, {name: (str(value.dtype), value.tolist()) for name, value in sorted(tensors.items())}])


@pytest.mark.parametrize("start", range(0, ROUNDS, 100))
def test_every_damage_to_a_saved_state_is_noticed(tmp_path: Path, start: int) -> None:
    folder = StateFolder(tmp_path / "states")
    path = folder.save(make_state())
    saved, expected = path.read_bytes(), content(make_state())
    refused = 0
    for seed in range(start, start + 100):
        path.write_bytes(saved)
        done = mutate(path, random.Random(seed))
        try:
            assert content(read_state(path)) == expected, f"seed {seed}: {done}"
        except TrainError:
            refused += 1
    assert refused > 60


@pytest.mark.slow
def test_no_flipped_byte_of_a_saved_state_goes_unnoticed(tmp_path: Path) -> None:
    path = StateFolder(tmp_path).save(make_state())
    saved, expected = path.read_bytes(), content(make_state())
    for place in range(len(saved)):
        path.write_bytes(saved[:place] + bytes([saved[place] ^ (1 << place % 8)]) + saved[place + 1 :])
        try:
            assert content(read_state(path)) == expected, place
        except TrainError:
            continue


@pytest.mark.parametrize("start", range(0, ROUNDS, 100))
def test_a_damaged_state_without_a_checksum_raises_only_the_trainers_error(tmp_path: Path, start: int) -> None:
    path = tmp_path / "state.safetensors"
    write_old_state(path, make_state())
    saved = path.read_bytes()
    for seed in range(start, start + 100):
        path.write_bytes(saved)
        mutate(path, random.Random(seed))
        try:
            read_state(path)
        except TrainError:
            continue


def test_forged_fields_of_a_state_raise_only_the_trainers_error(tmp_path: Path) -> None:
    packed, tensors = pack({**vars(make_state()), "origin": vars(make_state().origin)})
    refused = 0
    for seed in range(ROUNDS):
        tree = json.loads(json.dumps(packed))
        forge(tree, random.Random(seed))
        write_file(tmp_path / "state.safetensors", tree, tensors)
        try:
            read_state(tmp_path / "state.safetensors")
        except TrainError:
            refused += 1
    assert refused > 100


def write_old_state(path: Path, state: SavedState) -> None:
    """As version 0.2 wrote it."""
    write_file(path, *pack({**vars(state), "origin": vars(state.origin)}))


def write_file(path: Path, tree: Any, tensors: dict[str, torch.Tensor]) -> None:
    from safetensors.torch import save_file

    save_file(tensors, path, {"format": "streamcache-state-1", "state": json.dumps(tree)})


def forge(tree: Any, draw: random.Random) -> None:
    """Replace one value somewhere in a JSON document."""
    while True:
        key = draw.choice([*tree] if isinstance(tree, dict) else range(len(tree)))
        if not isinstance(tree[key], (dict, list)) or not tree[key] or draw.random() < 0.2:
            tree[key] = copy.deepcopy(draw.choice(ODD))
            return
        tree = tree[key]


def test_damaged_metrics_give_finite_curves_or_fewer_points(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path) as metrics:
        for step in range(1, 30):
            metrics.write(step=step, epoch=0, loss=1 / step, learning_rate=1e-4, waited=0.0, time=1.5)
            if step % 10 == 0:
                metrics.write(step=step, validation=0.5)
    written = path.read_bytes()
    for seed in range(ROUNDS):
        path.write_bytes(written)
        mutate(path, random.Random(seed), [*MUTATIONS, swap_lines])
        check_curves(path)
        CurveReader().curves(path, 50, 0.5)
        with MetricsFile(path, resume_at=12) as metrics:
            metrics.write(step=13, loss=1.0)
        check_curves(path)


ODD_LINES = [
    *("null", "[]", "3", '"step"', "{}", "\ufeff{}", "[" * 100_000, '{"step": 1}', '{"loss": 1}'),
    *(f'{{"step": {step}, "loss": 1}}' for step in ('"a"', "[1]", "null", "true", "1.5", "-1", "1e999", "9" * 5000)),
    *(f'{{"step": 1, "loss": {loss}}}' for loss in ("null", "NaN", "Infinity", "1e400", "[]", '"1"', "true")),
    *(f'{{"step": 1, "validation": {loss}}}' for loss in ("null", "[]", "-Infinity", "{}")),
]


@pytest.mark.parametrize("line", ODD_LINES, ids=range(len(ODD_LINES)))
def test_a_line_of_metrics_that_no_run_writes_is_skipped(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    good = '{"step": 1, "loss": 0.5}\n{"step": 2, "validation": 0.25}\n'
    path.write_text(line + "\n" + good, encoding="utf-8")
    check_curves(path)
    assert read_curves(path).losses[-1] == (1, 0.5) and read_curves(path).validation[-1] == (2, 0.25)
    path.write_bytes(b"\xff\xfe{\n" + good.encode())
    assert read_curves(path).losses == [(1, 0.5)]
    with MetricsFile(path, resume_at=1):
        pass
    assert read_curves(path).losses == [(1, 0.5)] and not read_curves(path).validation


def check_curves(path: Path) -> None:
    curves = read_curves(path)
    for step, value in curves.losses + curves.validation:
        assert type(step) is int and step >= 0 and type(value) is float and abs(value) < float("inf")


WORKFLOW = {
    "1": {"class_type": "StreamCacheCacheLoad", "inputs": {"name": "cats"}},
    "2.5": {"class_type": "KSampler", "inputs": {"steps": 20, "model": ["1", 0]}, "_meta": {"title": "Sample it"}},
}


def test_a_damaged_workflow_is_refused_or_run_as_it_is(tmp_path: Path) -> None:
    file, refused = tmp_path / "workflow.json", 0
    for seed in range(ROUNDS):
        draw = random.Random(seed)
        forged = json.loads(json.dumps(WORKFLOW))
        for _ in range(draw.choice((1, 1, 3))):
            forge(forged, draw)
        file.write_text(json.dumps(forged))
        if seed % 3 == 0:
            mutate(file, draw)
        try:
            prompt = read_workflow(str(file))
            for number in [*prompt, "9"]:
                assert isinstance(node_label(prompt, number), str)
            for change in ("1.name=dogs", "Sample it.steps=7", "2.5.nothing=1"):
                apply_change(prompt, change)
        except CacheError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"1": {"class_type": "A", "inputs": []}}', "node 1: inputs is not an object"),
        ('{"1": {"class_type": "A", "_meta": 3}}', "node 1: _meta is not an object"),
        ('{"1": {"class_type": ["A"]}}', "node 1: class_type is not a text"),
        ('{"1": {"class_type": "A", "_meta": {"title": ["x"]}}}', "node 1: the title is not a text"),
    ],
)
def test_a_workflow_with_a_part_of_another_type_is_refused_with_its_place(tmp_path, text: str, words: str) -> None:
    (tmp_path / "workflow.json").write_text(text)
    with pytest.raises(CacheError, match=words):
        read_workflow(str(tmp_path / "workflow.json"))


def test_a_workflow_that_cannot_be_opened_is_refused(tmp_path) -> None:
    for name in ("missing.json", "."):
        with pytest.raises(CacheError, match="cannot be read"):
            read_workflow(str(tmp_path / name))
    (tmp_path / "latin.json").write_bytes(b'{"caf\xe9": 1}')
    with pytest.raises(CacheError, match="not JSON"):
        read_workflow(str(tmp_path / "latin.json"))


@pytest.mark.parametrize(
    "output", [None, 3, [], {"text": 3}, {"text": [3]}, {"images": [{"filename": 1}, 3]}, {"x": {}}]
)
def test_results_of_any_form_are_shown(output: Any) -> None:
    assert all(isinstance(line, str) for line in describe_outputs({"1": output}, WORKFLOW))


ODD_MESSAGES: list[str | bytes] = [
    *(b"", b"x", b"\0\0\0\3\xff\xff\xff\xff", b"\0\0\0\3\0\0\0\1\xff\xff"),
    *("", "null", "[]", "3", "{", "[" * 100_000),
    *(json.dumps({"type": kind, "data": odd}) for kind in ("progress", "execution_error", []) for odd in ODD),
    *(
        json.dumps({"type": kind, "data": dict.fromkeys(("node", "value", "max", "node_id", "exception_message"), odd)})
        for kind in ("progress", "executing", "execution_error")
        for odd in ODD
    ),
]


def test_messages_of_any_form_are_read() -> None:
    for message in ODD_MESSAGES:
        for event in read_message(message, "p"):
            assert all(isinstance(text, str) for text in (event.kind, event.node, event.text)), message
            assert int(event.done) >= 0 and int(event.total) >= 0, message
