"""Prompts as text and as conditionings."""

import pytest

from streamcache.errors import TrainError
from streamcache.nodes.library import check_texts, make_sample_images, prompt_names, split_prompts

WORDS = [["conditioning"]]


def test_i3_texts_are_split_into_lines_and_conditionings_stay():
    assert split_prompts(["a cat\n\n  a dog ", WORDS, "a house"]) == ["a cat", "a dog", WORDS, "a house"]
    assert split_prompts(["", " \n"]) == []


def test_i3_a_prompt_is_called_by_its_text_or_by_its_number():
    assert prompt_names(["a cat", WORDS]) == ["a cat", "prompt 2"]


def test_i3_text_without_a_text_encoder_is_refused():
    check_texts([WORDS, None], None)
    with pytest.raises(TrainError, match='prompts: "a cat" is text, and no text encoder is connected; connect a CLIP'):
        check_texts([WORDS, "a cat"], None)


def test_i3_without_a_vae_no_text_is_encoded():
    images = make_sample_images(None, ["a cat", WORDS], "blurry", clip=object())
    assert (images.prompts, images.negative) == ([WORDS], None)
