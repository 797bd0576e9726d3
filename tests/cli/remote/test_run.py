"""`streamcache run` reads workflows and changes their inputs, before it connects to a server."""

import copy
import json
from pathlib import Path

import pytest

from streamcache.cli.remote.run import apply_change, node_label, read_workflow
from streamcache.dataset_cache import CacheError

PROMPT = {
    "1": {"class_type": "StreamCacheCacheLoad", "inputs": {"name": "cats"}},
    "2.5": {"class_type": "KSampler", "inputs": {"steps": 20, "text": ""}, "_meta": {"title": "Sample it"}},
}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "not a workflow"),
        ("{}", "not a workflow"),
        ('{"1": {"inputs": {}}}', "not a workflow"),
        ('{"nodes": [], "links": []}', "save it again in ComfyUI with Export \\(API\\)"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_file_that_is_not_a_workflow_is_refused(tmp_path: Path, text: str, words: str):
    file = tmp_path / "workflow.json"
    file.write_text(text)
    with pytest.raises(CacheError, match=words):
        read_workflow(str(file))


def test_a_workflow_is_read(tmp_path: Path):
    (tmp_path / "workflow.json").write_text(json.dumps(PROMPT))
    assert read_workflow(str(tmp_path / "workflow.json")) == PROMPT


@pytest.mark.parametrize(
    ("change", "place", "value"),
    [
        ("1.name=dogs", ("1", "name"), "dogs"),
        ("1.name=a=b", ("1", "name"), "a=b"),
        ("2.5.steps=7", ("2.5", "steps"), 7),
        ("Sample it.text=true", ("2.5", "text"), True),
        ('Sample it.text="true"', ("2.5", "text"), "true"),
    ],
)
def test_inputs_are_changed_by_number_or_title(change: str, place: tuple[str, str], value: object):
    prompt = copy.deepcopy(PROMPT)
    apply_change(prompt, change)
    assert prompt[place[0]]["inputs"][place[1]] == value


@pytest.mark.parametrize("change", ["name=dogs", "1.name", "1.nothing=1", "9.name=x", "=", ".="])
def test_a_change_to_an_unknown_input_is_refused(change: str):
    with pytest.raises(CacheError, match="--set"):
        apply_change(copy.deepcopy(PROMPT), change)


def test_node_labels_have_number_and_title():
    assert node_label(PROMPT, "2.5") == "2.5 Sample it"
    assert node_label(PROMPT, "1") == "1 StreamCacheCacheLoad"
