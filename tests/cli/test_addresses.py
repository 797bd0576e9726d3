"""Commands on addresses: the same results as on folders, and credentials stay where they are."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from streamcache.cli.main import main
from streamcache.dataset_cache import CacheWriter, open_cache, read_manifest, storage_at
from streamcache.reference.encoders import encode_caption

from ..support.commands import run, run_json
from ..support.fault_proxy import CUT_BODY, fault_proxy
from ..support.joined import growing
from ..support.remote_servers import BUCKET, upload


@pytest.fixture
def address(s3, tmp_path) -> str:
    return f"s3://{BUCKET}/{tmp_path.name}/set"


def test_f4_info_verify_and_export_of_an_address(encoding, address, tmp_path, capsys) -> None:
    assert run(*encoding) == 0
    upload(tmp_path / "cache", storage_at(address))
    sheets = [tmp_path / "here.png", tmp_path / "there.png"]
    for place, sheet in zip([tmp_path / "cache", address], sheets, strict=True):
        code, facts = run_json(capsys, "info", place, "--contact-sheet", sheet)
        assert code == 0 and facts["path"] == str(place) and facts["samples"] == 6
    assert sheets[0].read_bytes() == sheets[1].read_bytes()
    assert run("verify", address) == 0 and run("export", address, "--to", tmp_path / "copy") == 0
    assert open_cache(tmp_path / "copy").keys(5) == open_cache(tmp_path / "cache").keys(5)
    capsys.readouterr()
    assert run("info", f"{address}-2") == 1 and f"{address}-2: no such cache" in capsys.readouterr().err
    assert run("clean", address, "--unused", "--apply") == 1 and "is an address" in capsys.readouterr().err


def test_f4_f7_training_from_an_address_over_a_bad_line_gives_the_same_lora_and_shows_no_credentials(
    small, address, s3, tmp_path, monkeypatch, capfd, caplog
) -> None:
    upload(tmp_path / "set", storage_at(address))
    assert main([*small, "--steps", "4"]) == 0
    local = load_file(tmp_path / "out" / "my_lora.safetensors")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "planted-credential")
    hit: set[tuple[str, str]] = set()
    with fault_proxy(s3) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{proxy.address}")
        monkeypatch.setattr("streamcache.dataset_cache.remote.obstore_client._stores", {})
        monkeypatch.setattr("streamcache.dataset_cache.remote.remote_storage.HEAD_BYTES", 1 << 10)

        def once(seen, number):
            key = (seen.path, seen.range)
            return None if key in hit or hit.add(key) else CUT_BODY if len(hit) % 2 else 503

        proxy.fault = once
        moved = {
            str(tmp_path / "out/my_lora.safetensors"): str(tmp_path / "there" / "my_lora.safetensors"),
            str(tmp_path / "set"): address,
        }
        flags = [moved.get(part, part) for part in small]
        assert main([*flags, "--steps", "4", "--save-every", "2"]) == 0
    assert len(hit) > 3  # manifest, index and shards
    remote = load_file(tmp_path / "there" / "my_lora.safetensors")
    assert remote.keys() == local.keys() and all((remote[name] == local[name]).all() for name in local)
    described = json.loads(next((tmp_path / "there").rglob("run.json")).read_text())
    assert described["dataset"] == address
    shown = capfd.readouterr()
    texts = [shown.out, shown.err, caplog.text, *_all_files(tmp_path / "there"), *_all_files(tmp_path.parent)]
    assert len(texts) > 8 and not [text for text in texts if re.search("planted", text)]


def _all_files(folder: Path) -> list[str]:
    return [file.read_bytes().decode("latin-1") for file in folder.rglob("*") if file.is_file()]


def test_f7_an_address_with_a_password_is_refused_without_repeating_it(capsys) -> None:
    assert run("info", "https://anna:hunter2@example.com/set") == 1
    shown = capsys.readouterr()
    assert "leave that out" in shown.err and "hunter2" not in shown.err + shown.out


@pytest.mark.parametrize("kind", ["segments", "padding", "both"])
def test_f4_f10_commands_read_several_index_files_and_trimmed_text_at_an_address(
    small, kind, address, tmp_path, capsys
) -> None:
    folder = tmp_path / "set"
    grow(folder, kind)
    assert run("push", folder, address) == 0
    (code, here), (there_code, there) = (run_json(capsys, "info", place) for place in (folder, address))
    assert code == there_code == 0 and there["samples"] == 9 and there["index_bytes"] == here["index_bytes"]
    assert (there["bytes_trimmed"] == here["bytes_trimmed"] > 0) == (kind != "segments")
    assert run("verify", address) == 0
    flags = [address if part == str(folder) else part for part in small]
    (_, dry), (_, dry_here) = (run_json(capsys, *each, "--dry-run") for each in (flags, small))
    assert dry["forecast"]["peak"] == dry_here["forecast"]["peak"] and dry["fits"]
    outputs = []
    for each, name in ((small, "here"), (flags, "there")):
        lora = tmp_path / name / "my_lora.safetensors"
        each = [str(lora) if part.endswith("my_lora.safetensors") else part for part in each]
        assert run(*each, "--steps", 6, "--save-every", 3) == 0
        outputs.append(lora)
    local, remote = (load_file(file) for file in outputs)
    assert remote.keys() == local.keys() and all((remote[name] == local[name]).all() for name in local)
    saved = [*_all_files(tmp_path / "there"), *_all_files(tmp_path / "here")]
    assert not [text for text in saved if "planted" in text]
    with safe_open(outputs[1], "pt") as file:
        metadata = file.metadata()
    manifest = read_manifest(folder)
    named = (metadata["ss_dataset_id"], metadata["ss_dataset_generation"])
    assert named == (manifest.id, manifest.generation)
    states = [file for file in tmp_path.glob("there/**/*state*/**/*") if file.is_file()]
    assert any(manifest.generation in file.read_bytes().decode("latin-1") for file in states)


def grow(folder: Path, kind: str) -> None:
    """Three more samples with padded captions, in two more index files."""
    if kind == "padding":
        return add_padded(folder, range(3), trim=True)
    with growing():
        add_padded(folder, range(2), trim=kind == "both")
        add_padded(folder, range(2, 3), trim=kind == "both")
    assert len(read_manifest(folder).index_files) == 3


def add_padded(folder: Path, numbers: range, trim: bool) -> None:
    latent = open_cache(folder)[0].realize().latent
    with CacheWriter(folder, append=True, trim=trim) as writer:
        for n in numbers:
            ((text, facts),) = encode_caption(f"a padded caption {n}")
            text = torch.cat([text, text[:, -1:].expand(1, 120, -1)], 1)
            writer.add(latent={"samples": latent["samples"] + n}, conditioning=[[text, facts]], caption=f"padded {n}")
    assert ("padding" in read_manifest(folder).requires) == trim
