"""What a card size asks for, and which card a device is."""

import pytest

from streamcache.lora_train import TRAIN_SETTINGS
from streamcache.lora_train.recipes import base_for, card_for, read_recipe
from streamcache.nodes.host import HOST_SETTINGS

KNOWN = {**TRAIN_SETTINGS, **HOST_SETTINGS}
SAVING = {"checkpointing", "offload"}


@pytest.mark.parametrize(
    ("recipe", "saving"),
    [
        ("sdxl/style/16GB", set()),
        ("sdxl/style/8GB", {"checkpointing"}),
        ("flux1/style/24GB", {"checkpointing", "offload"}),
        ("flux1/style/32GB", {"checkpointing"}),
        ("flux1/style/80GB", set()),
        ("z_image/concept/16GB", {"checkpointing"}),
        ("wan/character/10GB", {"checkpointing", "offload"}),
        ("sd15/character/8GB", set()),
    ],
)
def test_i6_a_card_gets_the_first_way_to_save_memory_that_fits(recipe: str, saving: set[str]) -> None:
    assert read_recipe(recipe, KNOWN).advice.keys() & SAVING == saving


@pytest.mark.parametrize(("gib", "card"), [(7.8, "8GB"), (11.6, "12GB"), (23.5, "24GB"), (6, "8GB"), (141, "80GB")])
def test_a_device_is_the_largest_card_that_it_has_the_memory_of(gib: float, card: str) -> None:
    assert card_for(int(gib * 2**30)) == card


def test_the_base_follows_from_the_classes_of_a_model() -> None:
    assert base_for(["FluxSchnell", "Flux", "BASE"]) == "flux1"
    assert base_for(["flux.2-klein-9b"]) == "flux2_klein" and base_for(["flux.2-dev"]) is None
    assert base_for(["SSD1B", "SDXL", "BASE"]) == "sdxl"
    assert base_for(["StableAudio", "BASE", "object"]) is None
