"""What the sample images of a training are drawn from: a VAE, prompts, a negative prompt. And prompts as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...dataset_cache import Dataset, realize
from ...lora_train import Decode, Prompt, TrainConfig, TrainError, make_prompts, with_sample_images


@dataclass(frozen=True)
class SampleImages:
    """What sample images are drawn from. Without a VAE there are none."""

    vae: Any = None
    prompts: Sequence[list] = ()
    negative: list | None = None
    captions: Sequence[str] = ()  # the texts of the prompts, as far as they are known

    def settings(self, config: TrainConfig) -> TrainConfig:
        return config if self.vae is None else with_sample_images(config)

    def decoder(self, denoiser: Any) -> Decode | None:
        return None if self.vae is None else lambda latents: denoiser.decode(self.vae, latents)

    def find_prompts(self, dataset: Dataset) -> list[Prompt] | None:
        """The connected prompts, at the size of the largest bucket; None if there are none."""
        captions = self.captions or prompt_names(self.prompts)
        return make_prompts(dataset, captions, [realize(each) for each in self.prompts]) or None


def make_sample_images(vae: Any, prompts: Sequence[Any], negative: Any, clip: Any) -> SampleImages:
    """Sample images of conditionings, and of texts, which are encoded here: once, before the model is loaded."""
    prompts = split_prompts(prompts)
    check_texts([*prompts, negative], clip)
    texts = [given for given in (*prompts, negative) if isinstance(given, str)]
    if not texts or vae is None:
        plain = [given for given in prompts if not isinstance(given, str)]
        return SampleImages(vae, plain, None if isinstance(negative, str) else negative)
    encoded = encode_texts(clip, texts)
    found = [encoded[given] if isinstance(given, str) else given for given in (*prompts, negative)]
    return SampleImages(vae, found[:-1], found[-1], prompt_names(prompts))


def split_prompts(given: Sequence[Any]) -> list[Any]:
    """Texts, one per line, and conditionings as they are."""
    found: list[Any] = []
    for each in given:
        found += [line.strip() for line in each.splitlines() if line.strip()] if isinstance(each, str) else [each]
    return found


def prompt_names(prompts: Sequence[Any]) -> list[str]:
    """What is written beside the images of each prompt: its text, or its number if only its conditioning is known."""
    return [each if isinstance(each, str) else f"prompt {number}" for number, each in enumerate(prompts, start=1)]


def check_texts(prompts: Sequence[Any], clip: Any) -> None:
    """Refuse texts that nothing can encode."""
    text = next((each for each in prompts if isinstance(each, str)), None)
    if text is not None and clip is None:
        raise TrainError(
            f'prompts: "{text[:60]}" is text, and no text encoder is connected; connect a CLIP, or the conditioning '
            "from CLIP Text Encode"
        )


def encode_texts(clip: Any, texts: Sequence[str]) -> dict[str, list]:
    """The conditioning of each text. A text encoder that loads on demand is freed afterwards."""
    from ..host.encoders import text_encoder  # on use: its module imports ComfyUI's models

    encoder = text_encoder(clip)
    with encoder.lease():
        return {text: encoder.encode([text])[0] for text in dict.fromkeys(texts)}
