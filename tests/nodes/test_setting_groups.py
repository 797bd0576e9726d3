"""What nodes hide because it does not apply: the table names real settings, and what the others make useless."""

import pytest

from streamcache.lora_train import TRAIN_SETTINGS
from streamcache.lora_train.adapters import KINDS
from streamcache.lora_train.optimizers import OPTIMIZERS
from streamcache.lora_train.optimizers.optim import Rates
from streamcache.nodes.host import HOST_SETTINGS
from streamcache.nodes.setting_groups import NEEDS, shown_with

SETTINGS = {**TRAIN_SETTINGS, **HOST_SETTINGS}


def test_the_table_names_settings_and_values_that_exist() -> None:
    for name, needs in NEEDS.items():
        assert name in SETTINGS
        for other, values in [(other, values) for names, values in needs.items() for other in names.split("|")]:
            known = SETTINGS[other].limits.choices or (True, False, "")
            assert set(values or ()) <= set(known), (name, other)
            assert values is not None or SETTINGS[other].default is not None


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_settings_of_an_optimizer_are_shown_with_it(optimizer: str) -> None:
    taken = OPTIMIZERS[optimizer].arguments(Rates(1.0))
    uses = {"beta1": {"betas", "momentum"}, "beta2": {"betas"}, "epsilon": {"eps"}}
    for setting, arguments in uses.items():
        shown = optimizer in (NEEDS[setting]["optimizer"] or ())
        assert shown == bool(arguments & taken.keys()), setting


def test_kinds_that_change_the_output_have_no_dora_and_no_dropout() -> None:
    others = {name for name, kind in KINDS.items() if not kind.applies_to_output}
    assert all(set(NEEDS[setting]["adapter"] or ()) == others for setting in ("dora", "adapter_dropout"))


def test_the_front_end_gets_the_group_and_the_needs_of_a_setting() -> None:
    assert shown_with(SETTINGS["lokr_factor"]) == {"streamcache": {"group": "adapter", "needs": {"adapter": ["lokr"]}}}
    assert shown_with(SETTINGS["steps"])["streamcache"] == {"group": "run", "needs": {}}
    assert shown_with(SETTINGS["keep_exports"])["streamcache"]["needs"] == {"export_every|export_epochs": None}
    assert shown_with(SETTINGS["lr_floor"])["streamcache"]["needs"] == {"lr_schedule": None}
