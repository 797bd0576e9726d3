"""Scenario: prompts of sample images as text, on Train LoRA."""

import json
from pathlib import Path
from typing import Any

from .claims import claim, hold
from .families import FAMILIES, call
from .training_claims import Case, make_case, train

SAMPLES = {"sample_every": 2, "sample_steps": 1, "steps": 2}
PROMPTS = ("a cat in the rain", "a house")


def run(base: Path) -> dict:
    return {name: hold("prompt_claims", globals(), make_case(name)) for name in FAMILIES}


def run_of(case: Case, label: str) -> Path:
    from streamcache.nodes.host.app import runs_folder

    return runs_folder() / f"{case.name}-{label}"


def images(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "samples").glob("*.png"))}


def words(case: Case, text: str) -> Any:
    return call("CLIPTextEncode", clip=case.models.clip, text=text)[0]


@claim
def i3_texts_draw_what_their_conditionings_draw_and_are_the_captions(case: Case) -> None:
    texts = {"prompts": ["\n".join(PROMPTS)], "negative": "blurry", "clip": case.models.clip}
    train(case, "texts", vae=case.models.vae, **texts, **SAMPLES)
    given = {"prompts": [words(case, text) for text in PROMPTS], "negative": words(case, "blurry")}
    train(case, "given", vae=case.models.vae, **given, **SAMPLES)
    assert len(images(run_of(case, "texts"))) == 4
    assert images(run_of(case, "texts")) == images(run_of(case, "given"))
    told = [json.loads((run_of(case, label) / "run.json").read_text())["prompts"] for label in ("texts", "given")]
    assert told == [list(PROMPTS), ["prompt 1", "prompt 2"]], told


@claim
def i3_texts_are_encoded_once_and_the_encoder_is_freed_before_the_training(case: Case) -> None:
    from streamcache.nodes.host.encoders import clip_files, clip_on_demand
    from streamcache.nodes.training import train as module

    from .tiny_models import TEXT_ENCODER

    clip = clip_on_demand(clip_files([TEXT_ENCODER]), FAMILIES[case.name].clip_type)
    seen, before = [], module.train_lora

    def watching(*given: Any) -> Any:
        seen.append((clip.loads, clip.loaded))
        return before(*given)

    module.train_lora = watching
    try:
        train(case, "freed", vae=case.models.vae, prompts=list(PROMPTS), negative="blurry", clip=clip, **SAMPLES)
    finally:
        module.train_lora = before
    assert seen == [(1, False)] and clip.loads == 1, (seen, clip.loads)


@claim
def i3_a_text_without_a_text_encoder_is_refused_before_anything_starts(case: Case) -> None:
    try:
        train(case, "refused", vae=case.models.vae, prompts=["a cat"], **SAMPLES)
    except ValueError as error:
        assert 'prompts: "a cat" is text, and no text encoder is connected' in str(error), str(error)
    else:
        raise AssertionError("not refused")
    assert not run_of(case, "refused").exists()
