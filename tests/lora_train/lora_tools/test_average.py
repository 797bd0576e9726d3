"""Averages: of what the files do, exactly before the cut to their rank; or of the factors of one run."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from streamcache.errors import TrainError
from streamcache.lora_train import RankRule, average_loras, decaying_weights

from .lora_files import changes, close, lora, random, write


def run_files(folder: Path, count: int = 3, rank: int = 4) -> tuple[list[Path], list[dict]]:
    """Exports of one run: each a small step from the one before."""
    files = [lora(rank)]
    for at in range(1, count):
        steps = lora(rank, seed=at)
        files.append({key: value if key.endswith("alpha") else value + 0.01 * steps[key]
                      for key, value in files[-1].items()})  # fmt: skip
    told = {"ss_session_id": "7", "ss_network_dim": str(rank)}
    paths = [write(folder / f"my_lora-{at:06}.safetensors", t, {**told, "ss_steps": str(at)})
             for at, t in enumerate(files)]  # fmt: skip
    return paths, files


def mean(files: list[dict], shares: list[float]) -> dict[str, torch.Tensor]:
    found = [changes(tensors) for tensors in files]
    return {name: sum(share * one[name] for share, one in zip(shares, found)) for name in found[0]}


def test_i7_average_of_the_change_is_exact_at_the_sum_of_ranks(tmp_path: Path):
    paths, files = run_files(tmp_path)
    report = average_loras(paths, tmp_path / "a.safetensors", [1, 1, 2], rule=RankRule(12))
    close(changes(load_file(tmp_path / "a.safetensors")), mean(files, [0.25, 0.25, 0.5]))
    assert report.kept == pytest.approx(1)


def test_i7_average_of_the_change_is_cut_to_the_rank_of_the_files(tmp_path: Path):
    paths, files = run_files(tmp_path)
    report = average_loras(paths, tmp_path / "a.safetensors")
    expected = {}
    for name, change in mean(files, [1 / 3] * 3).items():
        u, values, v = torch.linalg.svd(change, full_matrices=False)
        expected[name] = u[:, :4] * values[:4] @ v[:4]
    close(changes(load_file(tmp_path / "a.safetensors")), expected, 1e-5)
    assert {layer.rank for layer in report.layers} == {4} and 0.99 < report.kept < 1


def test_i7_the_average_of_unrelated_files_is_that_of_what_they_do(tmp_path: Path):
    """The same change with other factors: their mean would be another change, the mean of changes is the change."""
    one = lora(4)
    turned = {key: -value if key.endswith("weight") else value for key, value in one.items()}
    paths = [write(tmp_path / "1.safetensors", one), write(tmp_path / "2.safetensors", turned)]
    average_loras(paths, tmp_path / "a.safetensors")
    close(changes(load_file(tmp_path / "a.safetensors")), changes(one), 1e-5)


def test_i7_average_of_factors_is_a_moving_average_of_weights(tmp_path: Path):
    paths, files = run_files(tmp_path)
    shares = decaying_weights(3, 0.8)
    average_loras(paths, tmp_path / "a.safetensors", shares, of="factors")
    average = dict(files[0])
    for tensors in files[1:]:
        average = {key: 0.8 * value + 0.2 * tensors[key] for key, value in average.items()}
    made = load_file(tmp_path / "a.safetensors")
    assert made.keys() == average.keys()
    assert all(torch.allclose(made[key], value, atol=1e-6) for key, value in average.items())
    assert sum(shares) == pytest.approx(1)


def test_i7_factors_of_every_kind_can_be_averaged(tmp_path: Path):
    kinds = {"m.oft_blocks": (2, 3, 3), "n.a1.weight": (2, 4), "o.dora_scale": (1, 4), "o.lora_up.weight": (4, 2)}
    kinds |= {"o.lora_down.weight": (2, 4), "p.lokr_w1": (2, 2), "p.lokr_w2": (3, 3)}
    files = [{key: random(*shape, seed=at) for key, shape in kinds.items()} for at in range(2)]
    paths = [write(tmp_path / f"{at}.safetensors", tensors) for at, tensors in enumerate(files)]
    average_loras(paths, tmp_path / "a.safetensors", of="factors")
    made = load_file(tmp_path / "a.safetensors")
    assert all(torch.allclose(made[key], (files[0][key] + files[1][key]) / 2) for key in kinds)
    with pytest.raises(TrainError, match="OFT, whose change depends on the base"):
        average_loras(paths, tmp_path / "b.safetensors")


def test_the_metadata_tells_the_shares(tmp_path: Path):
    paths, _ = run_files(tmp_path)
    for of in ("change", "factors"):
        average_loras(paths, tmp_path / f"{of}.safetensors", [1, 1, 2], of=of)
        with safe_open(tmp_path / f"{of}.safetensors", "pt") as file:
            metadata = file.metadata()
        made = json.loads(metadata["streamcache.made_from"])
        assert [source["weight"] for source in made["sources"]] == [0.25, 0.25, 0.5]
        assert metadata["ss_network_dim"] == "4" and "ss_steps" not in metadata


@pytest.mark.parametrize(
    ("change", "told", "words"),
    [
        ({"lora_unet_blocks_0_mlp_fc1.lora_up.weight": random(40, 5)}, {}, r"is \[40, 5\], but \[40, 4\] in my_lora"),
        ({"more.diff": random(3)}, {}, r"more.diff is \[3\], but missing"),
        (
            {},
            {"ss_session_id": "8"},
            r"is of another training than my_lora-000000.safetensors \(ss_session_id 8, not 7",
        ),
        ({"lora_unet_blocks_0_mlp_fc1.alpha": torch.tensor(9.0)}, {}, "fc1.alpha is not that of my_lora"),
    ],
)
def test_i7_factors_of_different_trainings_are_refused(tmp_path: Path, change: dict, told: dict, words: str):
    paths, files = run_files(tmp_path, 2)
    other = write(tmp_path / "other.safetensors", files[1] | change, {"ss_session_id": "7", **told})
    with pytest.raises(TrainError, match=words):
        average_loras([paths[0], other], tmp_path / "a.safetensors", of="factors")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"weights": [1, -1]}, "found -1, expected none below 0"),
        ({"of": "files"}, 'of: found "files"'),
        ({"of": "factors", "rule": RankRule(2)}, "keeps their rank"),
    ],
)
def test_impossible_averages_are_refused(tmp_path: Path, given: dict, words: str):
    paths, _ = run_files(tmp_path, 2)
    with pytest.raises(TrainError, match=words):
        average_loras(paths, tmp_path / "a.safetensors", **given)
    with pytest.raises(TrainError, match="decay: found 1, expected"):
        decaying_weights(2, 1.0)
