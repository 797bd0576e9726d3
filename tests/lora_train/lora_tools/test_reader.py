"""Reading LoRA files of unknown origin: what is wrong is said in a sentence, and nothing runs or fills memory."""

import hashlib
import pickle
from pathlib import Path

import pytest
import torch

from streamcache.errors import TrainError
from streamcache.lora_train.lora_tools.reader import open_lora

from .lora_files import lora, random, write, write_header

ENTRY = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


def text_of(path: Path, prefix: str = "") -> str:
    with pytest.raises(TrainError) as refused, open_lora(path) as opened:
        opened.parts(prefix or next(iter(opened.layers)))
    return str(refused.value)


def test_i7_hostile_headers_are_refused(tmp_path: Path):
    path = tmp_path / "a.safetensors"
    (tmp_path / "huge.safetensors").write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    write_header(tmp_path / "beyond.safetensors", {"a.lora_up.weight": {**ENTRY, "data_offsets": [0, 1 << 40]}})
    write_header(
        tmp_path / "shape.safetensors", {"a.lora_up.weight": {**ENTRY, "shape": [1 << 40, 1 << 40]}}, b"0" * 16
    )
    write_header(tmp_path / "type.safetensors", {"a.lora_up.weight": {**ENTRY, "dtype": "OBJECT"}}, b"0" * 16)
    (tmp_path / "short.safetensors").write_bytes(b"12")
    (tmp_path / "empty.safetensors").write_bytes(b"")
    for name in ("huge", "beyond", "shape", "type", "short", "empty", "missing"):
        assert "cannot be read as a safetensors LoRA file" in text_of(tmp_path / f"{name}.safetensors"), name
    path.mkdir()
    assert "not a file" in text_of(path)


def test_i7_a_pickle_is_never_loaded(tmp_path: Path):
    class Trap:
        def __reduce__(self) -> tuple:
            return Path.touch, (tmp_path / "ran",)

    (tmp_path / "a.pt").write_bytes(pickle.dumps(Trap()))
    torch.save(lora(2), tmp_path / "b.safetensors")
    for name in ("a.pt", "b.safetensors"):
        assert "cannot be read as a safetensors LoRA file" in text_of(tmp_path / name)
    assert not (tmp_path / "ran").exists()


def test_files_that_are_no_loras_are_named(tmp_path: Path):
    assert 'not a LoRA file: its first key is "model.weight"' in text_of(
        write(tmp_path / "a.safetensors", {"model.weight": random(2)})
    )
    assert "it is empty" in text_of(write(tmp_path / "b.safetensors", {}))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_i7_nan_and_infinite_values_are_refused_with_their_key(tmp_path: Path, value: float):
    bad = random(4, 2)
    bad[1, 1] = value
    path = write(tmp_path / "a.safetensors", {"m.lora_up.weight": bad, "m.lora_down.weight": random(2, 4)})
    assert "m.lora_up.weight has values that are nan or infinite" in text_of(path)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"m.lora_up.weight": random(4, 2)}, "m: incomplete LoRA: lora_down.weight missing"),
        ({"m.lora_up.weight": random(4, 2).int(), "m.lora_down.weight": random(2, 4)}, "expected floating-point"),
        ({"m.lora_up.weight": random(4, 2), "m.lora_down.weight": random(2, 4), "m.alpha": random(3)}, "an alpha of"),
        ({"m.lora_up.weight": random(4, 0), "m.lora_down.weight": random(0, 4)}, r"found down \(0, 4\)"),
    ],
)
def test_damaged_layers_are_named(tmp_path: Path, tensors: dict, words: str):
    import re

    assert re.search(words, text_of(write(tmp_path / "a.safetensors", tensors)))


def test_one_part_twice_is_refused(tmp_path: Path):
    tensors = {
        "m.lora_A.weight": random(2, 4),
        "m.lora_A.default.weight": random(2, 4),
        "m.lora_B.weight": random(4, 2),
    }
    assert "found two tensors for lora_down.weight" in text_of(write(tmp_path / "a.safetensors", tensors))


def test_only_the_tensors_of_one_layer_are_read_at_a_time(tmp_path: Path):
    with open_lora(write(tmp_path / "a.safetensors", lora(2))) as opened:
        read = []
        opened._file = type("Counting", (), {"get_tensor": lambda _, key, file=opened._file: read.append(key) or
                                             file.get_tensor(key)})()  # fmt: skip
        opened.parts("lora_unet_blocks_0_mlp_fc1")
    assert sorted(read) == [
        f"lora_unet_blocks_0_mlp_fc1.{part}" for part in ("alpha", "lora_down.weight", "lora_up.weight")
    ]


def test_the_hash_is_that_of_the_bytes_after_the_header(tmp_path: Path):
    path = write(tmp_path / "a.safetensors", lora(2), {"a": "b"})
    content = path.read_bytes()
    with open_lora(path) as opened:
        assert opened.hash() == hashlib.sha256(content[8 + int.from_bytes(content[:8], "little") :]).hexdigest()
