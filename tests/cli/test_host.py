"""ComfyUI's options as environment variables, as its main.py would set them."""

import pytest

from streamcache.cli.host import environment


def found(*options: str) -> dict[str, str]:
    made = environment(["--cpu", *options, "--base-directory", "D"])
    assert made.pop("TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL") == "1"
    return made


def test_only_the_chosen_devices_are_visible():
    expected = {"CUDA_VISIBLE_DEVICES": "1,3", "HIP_VISIBLE_DEVICES": "1,3", "ASCEND_RT_VISIBLE_DEVICES": "1,3"}
    assert found("--cuda-device", "1,3") == expected


def test_a_default_device_comes_first_and_the_others_stay():
    seen = found("--default-device", "2")
    assert seen["CUDA_VISIBLE_DEVICES"].startswith("2,0,1,3,") and seen["CUDA_VISIBLE_DEVICES"].endswith(",31")
    assert seen.keys() == {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}


@pytest.mark.parametrize("options", ["", "--cuda-device all", "--cuda-device=all --default-device=1"])
def test_without_a_choice_all_devices_stay_visible(options: str):
    assert found(*options.split()) == {}


def test_other_driver_options_are_set(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    options = ["--oneapi-device-selector", "level_zero:0", "--deterministic"]
    assert found(*options) == {"ONEAPI_DEVICE_SELECTOR": "level_zero:0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    assert found("--deterministic") == {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}
