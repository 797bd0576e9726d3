"""The pack as ComfyUI shows it: ids, texts, help pages, languages, and the cost of its import."""

import re
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from streamcache.dev import Host
from streamcache.tests.host.published import ROOT
from streamcache.tests.host.server import Server, read_json
from streamcache.tests.host.snapshot import compare, contract, english, pack_nodes

pytestmark = pytest.mark.host
SPECIAL = re.compile(r"[{}@|]")  # have a special meaning in the front end's texts


@pytest.fixture(scope="module")
def info(server: Server) -> dict[str, Any]:
    found = pack_nodes(server)
    assert len(found) >= 11
    return found


def test_ids_and_inputs_of_nodes_never_change_by_accident(info: dict[str, Any]):
    compare(ROOT / "tests" / "host" / "object_info.json", {name: contract(node) for name, node in info.items()})


def test_every_node_has_a_name_category_description_and_aliases(info: dict[str, Any]):
    for name, node in info.items():
        assert name.startswith("StreamCache")
        assert node["category"].split("/")[0] == "StreamCache"
        assert node["display_name"] and node["description"] and node["search_aliases"], name


def test_every_input_and_output_has_a_tooltip(info: dict[str, Any]):
    for name, node in info.items():
        texts = english(node)
        for at, words in {**texts["inputs"], **texts.get("outputs", {})}.items():
            assert words["tooltip"].endswith("."), f"{name}.{at}: {words['tooltip']!r}"


def test_every_node_has_a_help_page_with_every_input(info: dict[str, Any], server: Server):
    for name, node in info.items():
        address = f"{server.address}/extensions/streamcache/docs/{name}.md"
        with urllib.request.urlopen(address) as answer:
            page = answer.read().decode()
        assert page.startswith(f"# {node['display_name']}\n")
        missing = [at for at in english(node)["inputs"] if f"`{at}`" not in page]
        assert not missing, f"{name}: {missing}"


def test_the_english_texts_are_the_nodes_own(info: dict[str, Any]):
    compare(ROOT / "locales" / "en" / "nodeDefs.json", {name: english(node) for name, node in info.items()})


def test_the_chinese_texts_are_complete(info: dict[str, Any]):
    chinese = read_json(ROOT / "locales" / "zh" / "nodeDefs.json")
    for name, node in info.items():
        expected, found = english(node), chinese.get(name, {})
        assert _shape(found) == _shape(expected), name
        texts = [found["display_name"], found["description"], *(i["tooltip"] for i in found["inputs"].values())]
        assert all(re.search("[\u4e00-\u9fff]", text) for text in texts), name


def test_texts_contain_no_placeholders_of_the_front_end():
    for language in ("en", "zh"):
        for file in ("nodeDefs", "main"):
            text = "\n".join(_strings(read_json(ROOT / "locales" / language / f"{file}.json")))
            assert not SPECIAL.search(text), f"{language}/{file}: {SPECIAL.search(text)}"


def test_the_server_serves_the_texts(server: Server):
    texts = server.client.get("/i18n")
    assert texts["zh"]["nodeDefs"]["StreamCacheSelect"]["display_name"]


def test_importing_the_pack_adds_little_to_the_hosts_start(run_in_host: Callable[[str], dict]):
    # The target is 0.2 s of CPU time on an idle machine (about 0.16 s); twice that on one that runs all tests at once.
    took = run_in_host("import_time")
    assert took["seconds"] <= 0.4 and took["check"] <= 0.05


def test_the_oldest_supported_front_end_is_that_of_the_oldest_supported_comfyui(host: Host):
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    oldest = re.search(r'^requires-comfyui = ">=(.+)"$', project, re.MULTILINE)[1]
    if f'"{oldest}"' not in (host.folder / "comfyui_version.py").read_text(encoding="utf-8"):
        pytest.skip(f"needs ComfyUI {oldest}")
    needed = (host.folder / "requirements.txt").read_text(encoding="utf-8")
    front_end = re.search(r"^comfyui-frontend-package==(.+)$", needed, re.MULTILINE)[1]
    assert f'oldest-front-end = "{front_end}"\n' in project


def test_the_root_registers_nothing_when_it_is_imported_without_the_host():
    import streamcache

    assert streamcache.WEB_DIRECTORY == "./web"
    assert not hasattr(streamcache, "NODE_CLASS_MAPPINGS")


def _shape(texts: Any) -> Any:
    return {key: _shape(value) for key, value in texts.items()} if isinstance(texts, dict) else None


def _strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in _strings(item)]
    return [value] if isinstance(value, str) else []
