"""Prompts as text: their flags, what they need, and their encoding, once."""

import argparse
from collections.abc import Sequence
from typing import Any

from ..reference import ReferenceTextEncoder
from .parser import UsageError


def add_prompt_flags(group: argparse._ArgumentGroup, use: str) -> None:
    text = f"Prompt {use}; repeat it for several"
    group.add_argument("--prompt", action="append", default=[], metavar="TEXT", help=text)
    group.add_argument("--negative-prompt", metavar="TEXT", help=f"Negative prompt {use}")
    text = "Text encoder of ComfyUI for --prompt, by its name in Load CLIP; repeat it for several"
    group.add_argument("--clip", action="append", default=[], metavar="NAME", help=text)
    text = "Kind of model that the text encoder is for, by its name in Load CLIP (sdxl, sd3, flux, …) [%(default)s]"
    group.add_argument("--clip-type", default="stable_diffusion", metavar="TYPE", help=text)


def check_prompts(args: argparse.Namespace) -> None:
    """Refuse prompts that nothing can encode, before anything starts."""
    named = [flag for flag, value in (("--prompt", args.prompt), ("--negative-prompt", args.negative_prompt)) if value]
    blank = next((text for text in args.prompt if not text.strip()), None)
    if blank is not None:
        raise UsageError("--prompt: is empty; expected text")
    if args.reference and (args.clip or args.negative_prompt):
        flag = "--clip" if args.clip else "--negative-prompt"
        raise UsageError(f"{flag}: needs --comfyui FOLDER; the reference model has its own text encoder, and no CFG")
    if args.comfyui and named and not args.clip:
        raise UsageError(f"{named[0]}: needs a text encoder; add --clip NAME, as in Load CLIP")
    if args.comfyui and args.clip and not named:
        raise UsageError("--clip: is for --prompt, and there is none; add one, or leave --clip out")


def encode_prompts(args: argparse.Namespace) -> tuple[list[Any], Any]:
    """The conditionings of the prompts and of the negative one. The text encoder is freed afterwards."""
    texts = [*args.prompt, *([] if args.negative_prompt is None else [args.negative_prompt])]
    if not texts:
        return [], None
    encoded = _encode(args, list(dict.fromkeys(texts)))
    negative = None if args.negative_prompt is None else encoded[args.negative_prompt]
    return [encoded[text] for text in args.prompt], negative


def _encode(args: argparse.Namespace, texts: Sequence[str]) -> dict[str, Any]:
    encoder: Any = ReferenceTextEncoder()
    if args.comfyui:
        from ..nodes.host.encoders import open_clip, text_encoder  # importable only inside ComfyUI

        encoder = text_encoder(open_clip(args.clip, args.clip_type))
    with encoder.lease():
        return {text: encoder.encode([text])[0] for text in texts}
