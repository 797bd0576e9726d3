"""Tiny Models: objects of the host's own classes that draw what captions say; a first Run ends in pictures."""

from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image

from streamcache.tests.host.creature import LEAST, shares, shown_pictures, shows_creature
from streamcache.tests.host.first_steps import WITH, WITHOUT
from streamcache.tests.host.published import ROOT
from streamcache.tests.host.server import Server, read_json

pytestmark = pytest.mark.host
EXAMPLE = "01 First steps, no model files"
IMAGES = ROOT / "example_images" / "zogglewump"


@pytest.fixture(scope="module")
def claims(run_in_host: Callable[[str], dict]) -> dict[str, Any]:
    return run_in_host("tiny_claims")


def test_they_are_objects_of_the_hosts_own_classes(claims: dict[str, Any]):
    assert claims["classes"] == ["ModelPatcher", "CLIP", "VAE"]


def test_e5_their_identity_is_the_same_every_time(claims: dict[str, Any]):
    first, second = claims["identities"]
    assert first == second
    assert len(set(first)) == 2


def test_the_vae_returns_the_images_it_encoded(claims: dict[str, Any]):
    assert claims["latent"] == [1, 4, 16, 16]
    assert claims["error"] < 0.05  # of 1


@pytest.mark.parametrize("caption", ["a red circle on green", "a yellow square on blue", "a white star on purple"])
def test_the_model_draws_what_a_caption_says(claims: dict[str, Any], caption: str):
    """The shape's color is in the middle, the other one in the corners."""
    assert claims["drawn"][caption] == {"middle": caption.split()[1], "corners": caption.split()[-1]}


def test_every_example_image_shows_the_creature_and_has_a_caption():
    files = sorted(IMAGES.glob("*.png"))
    assert len(files) == 12
    assert [file.name for file in files if not shows_creature(Image.open(file))] == []
    assert all("zogglewump" in file.with_suffix(".txt").read_text(encoding="utf-8") for file in files)


def test_a_first_run_ends_in_pictures_that_show_the_lora_at_work(server: Server):
    prompt = read_json(ROOT / "example_workflows" / "api" / f"{EXAMPLE}.json")
    outputs = server.succeed(prompt)
    shown = {prompt[number]["_meta"]["title"]: facts for number, facts in outputs.items()}
    before, after = (shown_pictures(server, shown[title]) for title in (WITHOUT, WITH))
    found = [[shares(picture) for picture in pictures] for pictures in (before, after)]
    assert [shows_creature(picture) for picture in before] == [False] * 4, (LEAST, found)
    assert sum(shows_creature(picture) for picture in after) >= 3, (LEAST, found)
    assert (server.base / "output" / "loras" / "first_steps.safetensors").exists()
    assert outputs_of(prompt, outputs, "StreamCacheCacheSave")["streamcache"][0]["samples"] == 12


def outputs_of(prompt: dict[str, Any], outputs: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(shown for number, shown in outputs.items() if prompt[number]["class_type"] == kind)
