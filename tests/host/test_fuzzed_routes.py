"""Schemathesis reads docs/openapi.json and asks the real server for all kinds of things, sensible and not: no response
is a server error, and each has a status, a type and a content that the document allows."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import schemathesis
from hypothesis import HealthCheck, assume, given, settings
from PIL import Image
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from streamcache import dev
from streamcache.tests.host.schemas import DOCUMENT, operations, parameters
from streamcache.tests.host.server import Server, install_pack, start_server
from streamcache.tests.host.test_openapi import write_run
from streamcache.tests.support.samples import write_cache

pytestmark = [pytest.mark.host, pytest.mark.slow]

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
LONGEST_QUERY = 8000  # bytes; aiohttp itself refuses a longer first line, in plain text
EXAMPLES = 6  # per operation and mode
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
FOLDER, CACHE, RUN = "input/fuzzed", "fuzzed", "fuzzed"
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)


@schemathesis.serializer("application/zip")
def as_zip(context: schemathesis.SerializationContext, value: Any) -> dict[str, bytes]:
    return {"data": value if isinstance(value, bytes) else str(value).encode(errors="surrogatepass")}


@pytest.fixture(scope="module")
def fuzzed(host: dev.Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of its own, with something of each kind: what is asked for may be renamed, deleted or edited."""
    base = tmp_path_factory.mktemp("fuzzed")
    install_pack(base)
    (base / "models").mkdir()
    running = start_server(host, base)
    yield running
    running.stop()


def put_back(base: Path) -> None:
    """A cache, a run and a folder of images, as they were."""
    shutil.rmtree(base / "output" / "streamcache", ignore_errors=True)
    shutil.rmtree(base / "output" / "streamcache_runs", ignore_errors=True)
    write_cache(base / "output" / "streamcache" / CACHE, 3)
    write_run(base / "output" / "streamcache_runs" / RUN)
    folder = base / "input" / "fuzzed"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("a", "b"):
        Image.new("RGB", (64, 48), "red").save(folder / f"{name}.png")
        (folder / f"{name}.txt").write_text(f"{name}, red", encoding="utf-8")
    Image.new("L", (64, 48)).save(folder / "a-masklabel.png")


def real_values(path: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """Parameters that name something that exists."""
    thing = RUN if path.startswith("/run") else CACHE
    values = {"folder": FOLDER, "name": "a.png" if path.startswith("/folder") else thing, "names": ["a.png", "b.png"]}
    return {name: value for name, value in values.items() if name in wanted}


@pytest.mark.parametrize("mode", MODES, ids=["right", "wrong"])
@pytest.mark.parametrize(("method", "path"), [(method, path) for method, path, _ in operations()])
def test_every_response_is_as_documented(fuzzed: Server, method: str, path: str, mode: GenerationMode):
    document = next(each for m, p, each in operations() if (m, p) == (method, path))
    wanted = parameters(document)
    if mode is GenerationMode.NEGATIVE and not wanted:
        return  # nothing can be wrong
    put_back(fuzzed.base)
    operation = SCHEMA[f"/streamcache{path}"][method]

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:
        assume(len(urlencode(case.query, doseq=True, errors="surrogatepass")) < LONGEST_QUERY)
        case.validate_response(case.call(base_url=fuzzed.address), checks=CHECKS)
        place = case.body if isinstance(case.body, dict) else case.query
        real = real_values(path, wanted)
        if isinstance(place, dict) and real:
            place.update({name: value for name, value in real.items() if name != "names" or "filter" not in place})
            case.validate_response(case.call(base_url=fuzzed.address), checks=CHECKS)

    ask()


def test_the_server_is_alive_and_logged_no_error(fuzzed: Server):
    """After all others of this file."""
    assert fuzzed.client.get("/streamcache/folders")
    assert "A route failed" not in fuzzed.printed() and "Traceback" not in fuzzed.printed()
