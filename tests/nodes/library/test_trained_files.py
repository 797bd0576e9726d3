"""The files of a training as ComfyUI's assets know them."""

from pathlib import Path

from streamcache.lora_train import Run, TrainResult
from streamcache.nodes.library.trained_files import describe_files, trained_files


def touched(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def make_result(output: Path, **facts) -> tuple[TrainResult, Run]:
    run, loras = Run(output / "streamcache_runs" / "cat"), output / "loras"
    files = {"lora": touched(loras / "cat.safetensors"), "exports": (touched(loras / "cat-000005.safetensors"),)}
    return TrainResult(**{"step": 10, "steps": 10, "data_wait": 0.0, "seconds": 1.0, **files, **facts}), run


def test_i4_sample_images_plot_and_loras_are_saved_outputs(tmp_path) -> None:
    result, run = make_result(tmp_path)
    for name in ("step-00000005-0", "step-00000010-1", "step-00000010-0", "step-00000010-10"):
        touched(run.samples / f"{name}.png")
    touched(run.folder / "loss.png")
    samples, runs = "streamcache_runs/cat/samples", "streamcache_runs/cat"
    names = [("step-00000010-0.png", samples), ("step-00000010-1.png", samples), ("step-00000010-10.png", samples)]
    names += [("loss.png", runs)]
    loras = [("cat-000005.safetensors", "loras"), ("cat.safetensors", "loras")]
    assert trained_files(result, run, tmp_path) == {
        kind: [{"filename": name, "subfolder": folder, "type": "output"} for name, folder in found]
        for kind, found in (("images", names), ("loras", loras))
    }


def test_i4_files_outside_of_the_output_folder_or_missing_are_left_out(tmp_path) -> None:
    result, run = make_result(tmp_path / "elsewhere", exports=(tmp_path / "output" / "gone.safetensors",))
    assert trained_files(result, run, tmp_path / "output") == {"images": [], "loras": []}


def test_i1_earlier_and_missing_files_are_named_and_long_lists_cut(tmp_path) -> None:
    exports = tuple(tmp_path / f"cat-{step:06}.safetensors" for step in range(8))
    result, _ = make_result(tmp_path, exports=exports, missing=("cat-000009.safetensors",))
    earlier, missing = describe_files(result)
    assert earlier.startswith("LoRA files of earlier steps (8): cat-000000.safetensors, ") and earlier.endswith(", …")
    assert missing == "Missing LoRA files, moved or deleted since: cat-000009.safetensors"
    assert describe_files(make_result(tmp_path, exports=())[0]) == []
