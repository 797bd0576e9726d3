"""What nodes read from disk, and class images from Image Folder to Train LoRA."""

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def outcome(run_in_host: Callable[[str], dict]) -> dict:
    return run_in_host("disk_claims")


def check(outcome: dict, claim: str) -> None:
    assert outcome[claim] is None, outcome[claim]


def test_cache_load_reads_the_manifest_once(outcome: dict):
    check(outcome, "cache_load_reads_the_manifest_once")


def test_a11_from_the_second_epoch_on_train_lora_looks_at_no_file(outcome: dict):
    check(outcome, "from_the_second_epoch_on_train_lora_looks_at_no_file")


def test_d6_class_images_of_image_folder_are_trained_with_their_prompt_which_is_stored_once(outcome: dict):
    check(outcome, "class_images_are_trained_with_their_prompt_which_is_stored_once")
