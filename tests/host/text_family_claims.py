"""Scenario: captions share forwards in the text encoders of every family."""

from pathlib import Path

from comfy.sd1_clip import SDClipModel

from streamcache.nodes.host.encoders.shared_forwards import encode_together

from .claims import claim, hold
from .small_text_encoders import FIXED, LENGTHS, TEXT_ENCODERS, make_clip, make_tokens
from .text_claims import ROUNDING, distance, forwards


def run(base: Path) -> dict:
    return hold("text_family_claims", globals())


@claim
def a20_texts_of_one_length_share_each_forward_in_every_family() -> None:
    for name, family in TEXT_ENCODERS.items():
        clip = make_clip(name)
        alone = [clip.encode_from_tokens_scheduled(tokens) for tokens in make_tokens(name, 6)]
        with forwards() as seen:
            together = encode_together(clip, make_tokens(name, 6))
        far = distance(alone, together)
        assert far <= ROUNDING, f"{name}: {far}"
        networks = [network for network in clip.cond_stage_model.modules() if isinstance(network, SDClipModel)]
        fixed = sum(part in FIXED for part in family.tokens)
        expected = [6] * fixed + [3] * len(LENGTHS) * (len(networks) - fixed)
        assert sorted(seen) == sorted(expected), f"{name}: {seen}"
        del clip
