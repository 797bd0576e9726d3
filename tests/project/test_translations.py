"""Chinese, whole: every text for people has a translation, and each that lacks one is listed."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ..support.messages import ROOT, messages

CHINESE = re.compile("[\u4e00-\u9fff]")
CATALOGUE: dict[str, dict[str, str]] = json.loads((ROOT / "web" / "messages" / "zh.json").read_text(encoding="utf-8"))
HELP = sorted((ROOT / "web" / "docs").glob("*.md"))
EXAMPLES = sorted((ROOT / "example_workflows").glob("*.json"))
# Choices that are names or have the same name in Chinese.
NAMES = re.compile(
    r"(Ada|SGD|Prodigy)\w*|lora|loha|lokr|oft|b?fp?\d+|b?float\d+|\d+|cpu|mse|huber|l1|min_snr|comfyui|kohya|diffusers|flux|sd3|flash|cudnn"
    r"|\d+GB|chroma|flux1|flux2_klein|qwen_image|sd15|sdxl|wan|z_image"
)
SAME = {"Alpha", "Epsilon", "Latent", "StreamCache", "TensorBoard", "my_images"}  # texts that are the same in Chinese
# Names that people gave, and samplers and schedulers, which are ComfyUI's.
NAMED_BY_USERS = re.compile(r"folder|file|name|start_from|training_adapter|type|sampler|scheduler|.*_name\d?|push_to")


def placeholders(text: str) -> list[str]:
    return sorted(set(re.findall(r"%\d+%", text)))


def test_every_message_of_nodes_and_routes_is_translated():
    known = CATALOGUE["messages"]
    missing = [f"{place}: {text}" for text, place in messages().items() if text not in known]
    assert missing == [], 'add to "messages" in web/messages/zh.json:\n' + "\n".join(missing)


def test_the_collector_finds_messages_of_every_kind():
    found = messages()
    for text in (
        "%1%: cannot be read: %2%",  # raised
        "nothing to encode: connect Image Folder Dataset, or images and texts",  # a constant
        "the source folder is missing",  # the reason of an excluded file
        "%1% longer than the text encoder takes, which ignores the rest: %2%",  # made by a function
        "Scanning the images",  # progress
        "%1%: no such route; docs/api.md lists them all",  # a route's answer
    ):
        assert text in found


@pytest.mark.parametrize("part", ["messages", "words", "notes"])
def test_translations_are_chinese_and_keep_their_values(part: str):
    wrong = [
        english
        for english, chinese in CATALOGUE[part].items()
        if placeholders(english) != placeholders(chinese)
        or (not CHINESE.search(chinese) and re.search("[a-z]{3}", re.sub(r"%\d+%", "", chinese)))
    ]
    assert wrong == []


def test_every_choice_in_a_list_is_translated():
    nodes = json.loads((ROOT / "tests" / "host" / "object_info.json").read_text(encoding="utf-8"))
    inputs = [given for node in nodes.values() for given in node["inputs"] if given.get("options")]
    choices = {
        str(choice) for given in inputs if not NAMED_BY_USERS.fullmatch(given["id"]) for choice in given["options"]
    }
    assert len(choices) > 40
    names = {choice for choice in choices if NAMES.fullmatch(choice)}
    assert sorted(choices - names - set(CATALOGUE["words"])) == []


@pytest.mark.parametrize("page", HELP, ids=lambda page: page.stem)
def test_every_help_page_has_a_chinese_one_with_the_same_names(page: Path):
    english, chinese = page.read_text(encoding="utf-8"), page.with_suffix("") / "zh.md"
    assert chinese.is_file()
    text = chinese.read_text(encoding="utf-8")
    names = json.loads((ROOT / "locales" / "zh" / "nodeDefs.json").read_text(encoding="utf-8"))
    assert text.startswith(f"# {names[page.stem]['display_name']}\n")
    assert [name for name in re.findall(r"`([^`\n]+)`", english) if f"`{name}`" not in text] == []
    assert len(CHINESE.findall(text)) > 50
    assert text.count("\n| ") == english.count("\n| "), "a row of a table is missing"


def notes(workflow: dict[str, Any]) -> set[str]:
    """The lines of notes, and titles that differ from the node's name."""
    nodes = workflow["nodes"]
    lines = [line for node in nodes if node["type"] == "MarkdownNote" for line in node["widgets_values"][0].split("\n")]
    titles = [node["title"] for node in nodes if node.get("title")]
    return {line for line in [*lines, *titles] if line.strip()}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_every_note_of_a_template_is_translated(example: Path):
    found = notes(json.loads(example.read_text(encoding="utf-8")))
    assert len(found) > 1
    assert sorted(found - set(CATALOGUE["notes"])) == []


def texts(value: Any) -> list[str]:
    return [text for each in value.values() for text in texts(each)] if isinstance(value, dict) else [value]


def test_texts_of_pages_and_nodes_are_chinese():
    """Their keys are compared in test_page_words.py and tests/host/test_pack.py."""
    english = {
        text
        for file in ("main", "nodeDefs", "settings", "commands")
        for text in texts(json.loads((ROOT / "locales" / "zh" / f"{file}.json").read_text(encoding="utf-8")))
        if not CHINESE.search(text) and re.search("[a-z]{4}", re.sub(r"%\w+%", "", text))
    }
    assert english == SAME
