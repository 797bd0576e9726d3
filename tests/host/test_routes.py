"""The routes of caches on the real server: listing, viewing, renaming, deleting, cleaning, jobs."""

import io
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from streamcache.cli.remote.comfy_server import Messages
from streamcache.dataset_cache import CacheWriter, PublishLock, open_cache
from streamcache.tests.host.asking import get, post, snapshot, wait_for_job
from streamcache.tests.host.graph import Graph, save_folder
from streamcache.tests.host.pictures import write_pictures
from streamcache.tests.host.server import Server
from streamcache.tests.host.trainings import until
from streamcache.tests.support.samples import write_cache

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def shown(server: Server) -> Iterator[dict[str, Any]]:
    """The row of a cache that a workflow has saved."""
    write_pictures(server.base / "input" / "shown")
    graph = Graph(server)
    save_folder(graph, "input/shown", "shown", texts=False)
    server.succeed(graph.prompt)
    yield row(server, "shown")


def row(server: Server, name: str) -> dict[str, Any] | None:
    rows = get(server, "/caches").json["caches"]
    return next((each for each in rows if each["name"] == name), None)


def check_job(server: Server, path: str, values: dict[str, Any]) -> dict[str, Any]:
    """Start a job and wait until it ends."""
    return wait_for_job(server, post(server, path, values).json["job"]["id"])


def cache_folder(server: Server, name: str) -> Path:
    return server.base / "output" / "streamcache" / name


def choices(server: Server, node: str) -> list[str]:
    kind, more = server.client.get(f"/object_info/{node}")[node]["input"]["required"]["name"]
    return kind if isinstance(kind, list) else more["options"]


class TestViewing:
    def test_a_saved_cache_is_listed(self, shown: dict[str, Any]):
        assert shown["samples"] == 5 and shown["problem"] == "" and shown["thumbnails"]
        assert {bucket["name"] for bucket in shown["buckets"]} <= {"64×64", "80×48", "48×80"}
        assert shown["sources"] == "present" and set(shown["encoders"]) == {"latent"}

    def test_its_details_are_shown(self, server: Server, shown: dict[str, Any]):
        detail = get(server, "/cache", name="shown").json
        assert detail["row"]["generation"] == shown["generation"]
        assert {field["name"] for field in detail["fields"]} == {"latent", "thumbnail"}
        assert detail["captions"]["total"] == 6

    def test_a_cache_that_a_run_made_is_listed_as_such_and_can_still_be_loaded(self, server: Server):
        for name, facts in {"made_for_run": {"made for": "training of_mine"}, "saved_by_user": {}}.items():
            with CacheWriter(cache_folder(server, name), provenance=facts) as writer:
                writer.add(latent={"samples": torch.zeros(1, 4, 8, 8)}, caption="a")
        made, saved = row(server, "made_for_run"), row(server, "saved_by_user")
        assert made is not None and made["made_for"] == "of_mine" and saved is not None and saved["made_for"] == ""
        until(lambda: "saved_by_user" in choices(server, "StreamCacheCacheLoad"))
        assert "made_for_run" not in choices(server, "StreamCacheCacheLoad")
        until(lambda: "made_for_run" in choices(server, "StreamCacheClean"))
        graph = Graph(server)
        graph.add("PreviewAny", source=graph(graph.add("StreamCacheCacheLoad", name="made_for_run"), 1))
        server.succeed(graph.prompt)  # as in a workflow that was saved when it was in the list

    def test_its_samples_are_found(self, server: Server, shown: dict[str, Any]):
        page = get(server, "/cache/samples", name="shown", generation=shown["generation"], search="CAT").json
        assert page["total"] == 2 and {sample["captions"][0] for sample in page["samples"]} == {"a cat"}
        assert get(server, "/cache/samples", name="shown", generation="0" * 32).status == 409

    def test_its_thumbnails_may_be_cached_forever(self, server: Server, shown: dict[str, Any]):
        answer = get(server, "/cache/thumbnail", name="shown", generation=shown["generation"], number=0)
        assert answer.headers["content-type"] == "image/jpeg" and "immutable" in answer.headers["cache-control"]
        assert max(Image.open(io.BytesIO(answer.data)).size) == 64

    def test_viewing_changes_nothing(self, server: Server, shown: dict[str, Any]):
        before = snapshot(server.base)
        for path in ("/cache", "/cache/samples"):
            assert get(server, path, name="shown").status == 200
        assert get(server, "/cache/thumbnail", name="shown", number=1).status == 200
        assert get(server, "/caches").status == 200
        assert snapshot(server.base) == before


def names(server: Server) -> list[str]:
    return [each["name"] for each in get(server, "/caches").json["caches"]]


class TestChanging:
    def test_a_cache_is_renamed_deleted_restored_and_removed(self, server: Server):
        write_cache(cache_folder(server, "mine"), 2)
        assert post(server, "/cache/rename", {"name": "mine", "to": "group/yours"}).json == {"name": "group/yours"}
        number = post(server, "/cache/delete", {"name": "group/yours"}).json["trash"]
        assert "group/yours" not in names(server)
        (trashed,) = [each for each in get(server, "/caches").json["trash"] if each["id"] == number]
        assert (trashed["name"], trashed["kind"]) == ("group/yours", "cache")
        assert post(server, "/trash/restore", {"id": number}).json["name"] == "group/yours"
        assert "group/yours" in names(server)
        number = post(server, "/cache/delete", {"name": "group/yours"}).json["trash"]
        assert post(server, "/trash/empty", {"ids": [number]}).json["bytes"] == trashed["bytes"]
        assert number not in {each["id"] for each in get(server, "/caches").json["trash"]}

    def test_a_cache_is_shown_renamed_and_deleted_by_another_unicode_form_of_its_name(self, server: Server):
        nfc, nfd = "\u00e9t\u00e9", "e\u0301te\u0301"
        write_cache(cache_folder(server, nfd), 2)
        assert get(server, "/cache", name=nfc).json["row"]["name"] == nfd and nfd in names(server)
        assert get(server, "/cache/thumbnail", name=nfc, number=0).status == 200
        assert post(server, "/cache/rename", {"name": nfc, "to": f"{nfd}-2"}).status == 200
        assert nfd not in names(server)
        number = post(server, "/cache/delete", {"name": f"{nfc}-2"}).json["trash"]
        assert f"{nfd}-2" not in names(server)
        assert post(server, "/trash/empty", {"ids": [number]}).status == 200

    def test_a_cache_that_another_process_reads_is_not_changed(self, server: Server):
        reader = open_cache(write_cache(cache_folder(server, "busy"), 2))
        for path, values in {"/cache/delete": {}, "/cache/rename": {"to": "busy_no_more"}}.items():
            answer = post(server, path, {"name": "busy", **values})
            assert answer.status == 409 and "in use" in answer.error
        del reader
        assert post(server, "/cache/delete", {"name": "busy"}).status == 200

    def test_a_preview_is_carried_out_once(self, server: Server):
        folder = write_cache(cache_folder(server, "wasteful"), 3)
        (folder / ".index.1.tmp").write_bytes(b"x" * 500)
        shown = get(server, "/cache/clean", name="wasteful").json
        assert shown["bytes"] == 500 and (folder / ".index.1.tmp").exists()
        asked = {"name": "wasteful", "plan": shown["plan"], "categories": ["debris"]}
        assert post(server, "/cache/clean", asked).json["bytes"] == 500
        assert not (folder / ".index.1.tmp").exists()
        assert post(server, "/cache/clean", asked).status == 409

    def test_a_cache_in_another_root_is_changed_there(self, server: Server):
        further = server.base / "further"
        write_cache(further / "far", 1)
        assert "far" in names(server), "the probes register this root"
        assert post(server, "/cache/rename", {"name": "far", "to": "farther"}).status == 200
        assert (further / "farther" / "dataset.json").exists()
        assert post(server, "/cache/delete", {"name": "farther"}).status == 200
        assert (further / ".trash").is_dir()


def test_a_cache_can_be_viewed_while_it_is_saved_and_moved(server: Server):
    folder, over, statuses = cache_folder(server, "restless"), threading.Event(), Counter()
    looks = {
        "/cache": {},
        "/cache/samples": {"search": "caption"},
        "/cache/thumbnail": {"number": 0},
        "/cache/clean": {},
    }

    def look() -> None:
        while not over.is_set():
            for path, values in looks.items():
                statuses[get(server, path, name="restless", **values).status] += 1
            statuses[get(server, "/caches").status] += 1

    lookers = [threading.Thread(target=look) for _ in range(3)]
    for looker in lookers:
        looker.start()
    for count in range(1, 11):
        write_cache(folder, count)
        for name, to in (("restless", "resting"), ("resting", "restless")):
            answer = post(server, "/cache/rename", {"name": name, "to": to})
            assert answer.status == 200, answer.data
    over.set()
    for looker in lookers:
        looker.join()
    assert max(statuses) < 500 and statuses[200] > 20, server.printed()[-3000:]
    assert get(server, "/cache", name="restless").json["row"]["samples"] == 10


class TestJobs:
    def test_jobs_run_to_their_end_and_send_events(self, server: Server):
        folder = write_cache(cache_folder(server, "worked"), 4)
        with Messages(f"{server.address.replace('http', 'ws', 1)}/ws?clientId=jobs", 20) as events:
            job = post(server, "/cache/verify", {"name": "worked"}).json["job"]
            assert job["kind"] == "verify"
            heard = next(message for message in events if isinstance(message, str) and "streamcache.job" in message)
            assert job["id"] in heard
            assert post(server, "/cache/duplicate", {"name": "worked", "to": "copied"}).status == 200
            next(message for message in events if isinstance(message, str) and "streamcache.caches" in message)
        assert wait_for_job(server, job["id"])["state"] == "done"
        assert len(open_cache(cache_folder(server, "copied"))) == len(open_cache(folder)) == 4
        job = post(server, "/cache/export", {"name": "worked", "to": "away/there"}).json["job"]
        assert wait_for_job(server, job["id"])["state"] == "done"
        assert (server.base / "output" / "streamcache_export" / "away" / "there" / "dataset.json").exists()
        assert post(server, "/job/cancel", {"id": job["id"]}).json == {}
        assert post(server, "/cache/export", {"name": "worked", "to": "away/there"}).status == 409

    def test_repair_drops_what_verify_counted_and_nothing_while_the_cache_is_in_use(self, server: Server):
        folder = cache_folder(server, "mended")
        with CacheWriter(folder) as writer:
            for number in range(60):
                latent = {"samples": torch.full((1, 4, 32, 32), float(number))}
                writer.add(latent=latent, caption=f"caption {number}", source=f"{number}.png")
        shard = next((folder / "shards").glob("*.safetensors"))
        whole = shard.read_bytes()
        shard.write_bytes(whole[:-10] + bytes([whole[-10] ^ 255]) + whole[-9:])
        job = post(server, "/cache/verify", {"name": "mended"}).json["job"]
        assert (found := wait_for_job(server, job["id"]))["counts"] == {"dropped": 1}, found
        request = {"name": "mended", "most": 1}
        reader = open_cache(folder)
        assert post(server, "/cache/repair", request).status == 409
        del reader
        lock = PublishLock(folder)  # as a writer has it
        assert post(server, "/cache/repair", request).status == 409
        lock.release()
        for most, state in ((0, "failed"), (1, "done")):
            job = check_job(server, "/cache/repair", {"name": "mended", "most": most})
            assert job["kind"] == "repair" and job["state"] == state, job
            assert len(open_cache(folder)) == 60 - (state == "done")
        assert job["counts"]["dropped"] == 1
        assert check_job(server, "/cache/verify", {"name": "mended"})["counts"] == {}

    def test_a_repair_that_would_drop_many_names_them_and_waits_for_consent(self, server: Server):
        folder = write_cache(cache_folder(server, "torn_apart"), 4)
        for shard in (folder / "shards").glob("*.safetensors"):
            shard.write_bytes(shard.read_bytes()[:-200])
        dropped = check_job(server, "/cache/verify", {"name": "torn_apart"})["counts"]["dropped"]
        request = {"name": "torn_apart", "most": dropped}
        job = check_job(server, "/cache/repair", request)
        assert job["state"] == "failed" and job["counts"] == {"dropped": dropped, "samples": 4}
        assert len(job["problems"]) == dropped and {each["kind"] for each in job["problems"]} == {"dropped"}
        assert post(server, "/cache/repair", {**request, "accept_loss": "yes"}).status == 400
        assert check_job(server, "/cache/repair", {**request, "accept_loss": True})["state"] == "done"
        assert len(open_cache(folder)) == 4 - dropped

    def test_a_save_sends_an_event_to_all_pages(self, server: Server, shown: dict[str, Any]):
        graph = Graph(server)
        save_folder(graph, "input/shown", "told", texts=False)
        with Messages(f"{server.address.replace('http', 'ws', 1)}/ws?clientId=looker", 60) as events:
            server.succeed(graph.prompt)
            next(message for message in events if isinstance(message, str) and "streamcache.caches" in message)
