"""Scenario: captions that share forwards, compared with ComfyUI's own CLIP Text Encode."""

import contextlib
import functools
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import comfy.hooks
import comfy.model_management as management
import folder_paths
import torch
from comfy.sd1_clip import SDClipModel
from comfy.text_encoders.gpt_oss import LensGptOssClipModel
from safetensors.torch import save_file

from streamcache.dataset_cache import open_cache
from streamcache.dataset_cache.encode.encoders import Failure, Phase
from streamcache.nodes.host.encoders.encoders import surroundings, text_encoder
from streamcache.nodes.host.encoders.shared_forwards import encode_together

from .claims import claim, hold
from .difference import difference
from .families import FAMILIES, call
from .pictures import write_pictures
from .small_text_encoders import make_clip, make_tokens
from .tiny_models import TEXT_ENCODER

ROUNDING = 2e-6  # of the largest value, in float32
TEXTS = ["a cat", "a dog on a wall", "a (very:1.4) good (dog)", "", "a cat", "long " * 100, "a house by the sea", "x"]


def run(base: Path) -> dict:
    return hold("text_claims", globals(), base)


@functools.cache
def load_clip(kind: str = "stable_diffusion") -> Any:
    return call("CLIPLoader", clip_name=TEXT_ENCODER, type=kind)[0]


def stock(clip: Any, text: str) -> Any:
    return call("CLIPTextEncode", clip=clip, text=text)[0]


@contextlib.contextmanager
def forwards(act: Callable[[int], None] = lambda rows: None) -> Iterator[list[int]]:
    """The number of rows of each forward of a network. `act` is called before it."""
    seen: list[int] = []
    forward = SDClipModel.forward

    def counted(self: Any, tokens: Any) -> Any:
        seen.append(len(tokens))
        act(len(tokens))
        return forward(self, tokens)

    SDClipModel.forward = counted
    try:
        yield seen
    finally:
        SDClipModel.forward = forward


def interrupted(work: Callable[[], Any]) -> None:
    try:
        work()
    except management.InterruptProcessingException:
        return
    finally:
        management.interrupt_current_processing(False)  # for the next claim, if it was not noticed
    raise AssertionError("not interrupted")


class OwnEncoder(torch.nn.Module):
    """A text encoder that does not use the call that all others have in common. `act` is called for every text."""

    def __init__(self, act: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.calls: list[Any] = []
        self._act = act

    def set_clip_options(self, options: Any) -> None:
        pass

    def reset_clip_options(self) -> None:
        pass

    def encode_token_weights(self, tokens: Any) -> Any:
        self.calls.append(tokens["l"])
        self._act()
        return torch.tensor([[[float(token) for token, _ in tokens["l"][0]]]]), None


def distance(expected: Any, found: Any) -> float:
    """The largest difference of two results of one structure, relative to the largest value of each tensor."""
    if isinstance(expected, torch.Tensor):
        assert expected.shape == found.shape and expected.dtype == found.dtype
        if not expected.numel():
            return 0.0
        assert bool(torch.isfinite(expected.float()).all())
        return float((expected.double() - found.double()).abs().max() / expected.double().abs().max().clamp(min=1e-9))
    assert type(expected) is type(found)
    if isinstance(expected, dict):
        assert list(expected) == list(found)
        return max([0.0, *(distance(expected[key], found[key]) for key in expected)])
    if isinstance(expected, list | tuple):
        assert len(expected) == len(found)
        return max([0.0, *(distance(a, b) for a, b in zip(expected, found, strict=True))])
    assert expected == found
    return 0.0


@claim
def a20_eight_captions_take_one_forward_where_each_took_one(base: Path) -> None:
    clip = load_clip()
    texts = [f"a cat number {number}" for number in range(8)]
    with forwards() as before:
        alone = [stock(clip, text) for text in texts]
    with forwards() as after:
        together = text_encoder(clip).encode(texts)
    assert before == [1] * 8 and after == [8]
    assert distance(alone, together) <= ROUNDING


@claim
def weights_long_texts_and_empty_ones_share_forwards_too(base: Path) -> None:
    clip = load_clip()
    with forwards() as seen:
        together = text_encoder(clip).encode(TEXTS)
    # The weighted text has an empty row of its own, the long one two rows.
    assert seen == [len(TEXTS) + 2]
    assert distance([stock(clip, text) for text in TEXTS], together) <= ROUNDING


@claim
def one_caption_is_bit_equal_to_clip_text_encode(base: Path) -> None:
    for kind in ("stable_diffusion", "sd3"):
        clip = load_clip(kind)
        encoder = text_encoder(clip)
        with Phase(encoder, 1) as phase:
            made = [value for batch in phase.encode(TEXTS) for value in batch]
        assert difference([stock(clip, text) for text in TEXTS], made) is None


@claim
def clip_skip_is_kept(base: Path) -> None:
    clip = load_clip().clone()
    clip.clip_layer(-2)
    together = text_encoder(clip).encode(TEXTS)
    assert distance([stock(clip, text) for text in TEXTS], together) <= ROUNDING
    assert distance(stock(load_clip(), "a cat"), together[0]) > 0.01


@claim
def captions_with_embeddings_are_encoded_as_by_the_stock_node(base: Path) -> None:
    folder = Path(folder_paths.get_folder_paths("embeddings")[0])
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"emb_params": torch.randn(3, 768)}, folder / "batched.safetensors")
    clip = load_clip()
    texts = ["a cat, embedding:batched", "a cat", "a dog", "embedding:batched"]
    with forwards() as seen:
        together = text_encoder(clip).encode(texts)
    assert sorted(seen) == [1, 1, 2]
    assert distance([stock(clip, text) for text in texts], together) <= ROUNDING


@claim
def embedding_folders_that_did_not_change_are_not_listed_at_every_prompt(base: Path) -> None:
    folder = Path(folder_paths.get_folder_paths("embeddings")[0])
    folder.mkdir(parents=True, exist_ok=True)
    listed: list[Any] = []
    real = os.scandir

    def counted(path: Any) -> Any:
        listed.append(path)
        return real(path)

    def look() -> str:
        listed.clear()
        return surroundings().stamp

    os.scandir = counted
    try:
        save_file({"emb_params": torch.randn(3, 768)}, folder / "watched.safetensors")
        os.utime(folder, (1e9, 1e9))  # long ago: the folder is settled
        first = look()
        assert str(folder) in map(str, listed)
        assert look() == first and listed == []
        save_file({"emb_params": torch.randn(4, 768)}, folder / "watched.safetensors")
        os.utime(folder, (1e9, 1e9))
        assert look() != first and listed == [], "a file that changed is noticed without a list"
    finally:
        os.scandir = real


@claim
def scheduled_hooks_are_encoded_as_by_the_stock_node(base: Path) -> None:
    clip = load_clip().clone()
    clip.use_clip_schedule, clip.patcher.forced_hooks = True, comfy.hooks.HookGroup()
    texts = ["a cat", "a dog"]
    assert difference([stock(clip, text) for text in texts], text_encoder(clip).encode(texts)) is None


@claim
def an_encoder_that_never_meets_the_common_call_runs_one_text_at_a_time(base: Path) -> None:
    assert not hasattr(LensGptOssClipModel, "encode"), "a family of ComfyUI that is made this way"
    clip = make_clip("SD 1.5")
    clip.cond_stage_model = own = OwnEncoder()
    tokens = make_tokens("SD 1.5", 3)
    made = encode_together(clip, tokens)
    assert own.calls == [item["l"] for item in tokens]
    assert [float(cond[0][0][0, 0, 0]) for cond in made] == [item["l"][0][0][0] for item in tokens]


@claim
def an_interrupt_is_noticed_between_texts_that_share_no_forward(base: Path) -> None:
    clip = make_clip("SD 1.5")
    clip.cond_stage_model = own = OwnEncoder(management.interrupt_current_processing)
    interrupted(lambda: encode_together(clip, make_tokens("SD 1.5", 3)))
    assert len(own.calls) == 1


@claim
def an_interrupt_is_noticed_between_the_networks_of_one_text(base: Path) -> None:
    clip = make_clip("SDXL")
    (tokens,) = make_tokens("SDXL", 1)
    for rows in tokens.values():
        rows[0][3] = (torch.zeros(64), 1.0)  # an embedding: the text runs alone
    with forwards() as seen:
        encode_together(clip, [tokens])
    assert seen == [1, 1]
    with forwards(lambda rows: management.interrupt_current_processing()) as seen:
        interrupted(lambda: encode_together(clip, [tokens]))
    assert seen == [1]


@claim
def an_interrupt_ends_a_batch_and_leaves_the_model_as_it_was(base: Path) -> None:
    clip = load_clip()
    texts = ["a cat", "(a dog:1.2)", "long " * 100]

    def interrupt(rows: int) -> None:
        management.interrupt_current_processing()

    with forwards(interrupt) as seen:
        interrupted(lambda: text_encoder(clip).encode(texts))
    assert len(seen) == 1
    assert not any("encode" in vars(module) for module in clip.cond_stage_model.modules())
    assert difference(stock(clip, "a cat"), text_encoder(clip).encode(["a cat"])[0]) is None


@claim
def a20_a_text_that_fails_fails_alone(base: Path) -> None:
    clip = load_clip()
    texts = ["a cat", "a dog \ud800", "a house"]  # a lone surrogate, which no tokenizer accepts
    with Phase(text_encoder(clip), 8) as phase:
        lengths = [phase.length(text) for text in texts]
        (made,) = phase.encode(texts)
    assert lengths == [[77], [], [77]]
    assert isinstance(made[1], Failure)
    assert difference([stock(clip, text) for text in texts[::2]], made[::2]) is None


@claim
def running_out_of_memory_halves_the_batch(base: Path) -> None:
    clip = load_clip()

    def limit(rows: int) -> None:
        if rows > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")

    texts = [f"text {number}" for number in range(8)]
    with forwards(limit) as seen, Phase(text_encoder(clip), 8) as phase:
        made = [value for batch in phase.encode(texts) for value in batch]
    assert seen == [8, 4, 2, 2, 2, 2]
    assert distance([stock(clip, text) for text in texts], made) <= ROUNDING


@claim
def another_thread_may_use_the_model_meanwhile(base: Path) -> None:
    clip = load_clip()
    expected = stock(clip, "a bird")
    found: list[Any] = []

    def use() -> None:
        with torch.inference_mode():
            found.append(clip.cond_stage_model.encode_token_weights(clip.tokenize("a bird"))[0])

    def meanwhile(rows: int) -> None:
        if rows > 1:
            thread = threading.Thread(target=use)
            thread.start()
            thread.join()

    with forwards(meanwhile) as seen:
        together = text_encoder(clip).encode(["a cat", "a dog"])
    assert seen == [2, 1]
    assert difference(expected[0][0], found[0]) is None
    assert distance([stock(clip, "a cat"), stock(clip, "a dog")], together) <= ROUNDING


@claim
def a20_the_command_line_encodes_texts_in_batches(base: Path) -> None:
    """Inside ComfyUI's Python, as `--comfyui` starts it."""
    from streamcache.cli import host as place
    from streamcache.cli.main import main

    family, folder = FAMILIES["eps"], base / "text_batches"
    write_pictures(folder, seed=31)
    place.INSIDE = True
    found = {}
    for size in (1, 8):
        command = ["encode", str(folder), "--to", str(base / f"texts {size}"), "--resolution", "64", "--step", "16"]
        command += ["--comfyui", ".", "--clip", TEXT_ENCODER, "--clip-type", family.clip_type, "--vae", family.vae]
        with forwards() as seen:
            assert main([*command, "--text-batch-size", str(size), "--json"]) == 0
        found[size] = seen, open_cache(base / f"texts {size}")
    assert found[1][0] == [1] * 6 and found[8][0] == [6], json.dumps([found[1][0], found[8][0]])
    ones, many = found[1][1], found[8][1]
    assert [ones.keys(n) for n in range(len(ones))] == [many.keys(n) for n in range(len(many))]
    clip = load_clip()
    for n in range(len(ones)):
        sample = ones[n].realize()
        assert difference(stock(clip, sample.caption), sample.conditioning) is None
        assert distance(sample.conditioning, many[n].realize().conditioning) <= ROUNDING
