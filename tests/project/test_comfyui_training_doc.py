"""The comparison in docs/comfyui_training.md refers to claims that the host tests check."""

import re
from pathlib import Path

from streamcache.tests.host.claims import names_in

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "comfyui_training.md"
SCENARIOS = ("denoiser_claims", "family_claims", "training_claims")


def test_every_row_of_the_comparison_names_a_claim_of_the_host_tests():
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if re.search(r"\| `\w{20,}` \|$", line)]
    named = {re.search(r"`(\w+)` \|$", row)[1] for row in rows}
    assert len(rows) == 11
    assert named <= {name for scenario in SCENARIOS for name in names_in(scenario)}
