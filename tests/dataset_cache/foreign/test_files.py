"""Files of strangers: nothing in them runs, and nothing that they state makes this process allocate it."""

import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from streamcache.dataset_cache import CacheError
from streamcache.dataset_cache.foreign import files
from streamcache.dataset_cache.foreign.files import Npz, read_metadata, read_pickled, read_tensors, read_whole

from .trainers import saved


class Runs:
    """A pickle that leaves a file behind if it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode() + b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def npz(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "uint8", "bool", ">f4"])
@pytest.mark.parametrize("packed", [False, True])
def test_f9_arrays_are_read_in_every_type_and_order(tmp_path: Path, dtype: str, packed: bool):
    given = np.asfortranarray((np.arange(24).reshape(2, 3, 4) % 2).astype(dtype))
    (np.savez_compressed if packed else np.savez)(tmp_path / "a.npz", latents=given, flag=np.array(True))
    with Npz(tmp_path / "a.npz") as arrays:
        assert list(arrays) == ["latents", "flag"] and "latents" in arrays and arrays.numbers("flag") == (1,)
        assert np.array_equal(arrays["latents"].numpy(), given) and arrays.numbers("missing") == ()


def test_f9_an_array_of_objects_is_refused_and_runs_nothing(tmp_path: Path):
    np.savez(tmp_path / "a.npz", latents=np.array([Runs(tmp_path / "ran")], dtype=object), good=np.zeros(2))
    with Npz(tmp_path / "a.npz") as arrays:
        assert arrays["good"].tolist() == [0, 0]
        with pytest.raises(CacheError, match="refused: an array of object"):
            arrays["latents"]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 1000000, 1000), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 4), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-4, 4), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }",
        "{'descr': 'S1000000000', 'fortran_order': False, 'shape': (4,), }",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (4,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': __import__('os').getcwd(), }",
        "not a header",
    ],
)
def test_f9_headers_that_lie_are_refused(tmp_path: Path, header: str):
    path = npz(tmp_path / "a.npz", {"latents.npy": npy(header, bytes(16))})
    with Npz(path) as arrays, pytest.raises(CacheError, match=r"a\.npz: latents"):
        arrays["latents"]


def test_f9_a_bomb_is_refused_by_its_stated_size_and_one_that_hides_it_by_its_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(files, "MAX_ARRAY_BYTES", 1 << 20)
    size = 1 << 24
    header = npy(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({size},), }}")
    path = npz(tmp_path / "bomb.npz", {"latents.npy": header + bytes(size)}, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 20_000
    with Npz(path) as arrays, pytest.raises(CacheError, match="unpacks to 16,777,"):
        arrays["latents"]
    small = npz(
        tmp_path / "small.npz", {"latents.npy": npy("{'descr': '|u1', 'fortran_order': False, 'shape': (9,), }")}
    )
    small.write_bytes(small.read_bytes().replace((128).to_bytes(4, "little"), (137).to_bytes(4, "little")))
    with Npz(small) as arrays, pytest.raises(CacheError):
        arrays["latents"]


def test_f9_archives_with_too_many_parts_or_damage_are_refused(tmp_path: Path):
    npz(tmp_path / "many.npz", {f"{i}.npy": b"" for i in range(2000)})
    (tmp_path / "cut.npz").write_bytes((tmp_path / "many.npz").read_bytes()[:1000])
    for name in ("many", "cut"):
        with pytest.raises(CacheError, match=name):
            Npz(tmp_path / f"{name}.npz")


def test_f9_links_and_large_files_are_not_read(tmp_path: Path):
    save_file({"latent": torch.zeros(4)}, tmp_path / "real.safetensors")
    np.savez(tmp_path / "real.npz", latents=np.zeros(3))
    with pytest.raises(CacheError, match="is larger than 10 bytes"):
        read_whole(tmp_path / "real.npz", 10)
    try:
        for kind in ("npz", "safetensors"):
            os.symlink(tmp_path / f"real.{kind}", tmp_path / f"link.{kind}")
    except OSError:
        pytest.skip("no symbolic links here")
    for read in (Npz, read_whole):
        with pytest.raises(CacheError, match="is a link"):
            read(tmp_path / "link.npz")
    for read in (read_tensors, read_metadata):
        with pytest.raises(CacheError, match="is a link"):
            read(tmp_path / "link.safetensors")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 20,
        (1 << 40).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (74).to_bytes(8, "little")
        + b'{"latent":{"dtype":"F32","shape":[1000000,1000000],"data_offsets":[0,16]}}'
        + bytes(16),
    ],
)
def test_f9_safetensors_that_lie_are_refused(tmp_path: Path, data: bytes):
    (tmp_path / "a.safetensors").write_bytes(data)
    with pytest.raises(CacheError, match=r"a\.safetensors"):
        read_tensors(tmp_path / "a.safetensors")


def test_f9_metadata_is_read_without_the_tensors(tmp_path: Path):
    save_file({"latent": torch.zeros(4)}, tmp_path / "a.safetensors", {"architecture": "wan"})
    assert read_metadata(tmp_path / "a.safetensors") == {"architecture": "wan"}
    (tmp_path / "a.safetensors").write_bytes((1 << 50).to_bytes(8, "little"))
    with pytest.raises(CacheError, match="header"):
        read_metadata(tmp_path / "a.safetensors")


def test_f9_pickles_give_plain_data_and_tensors_only(tmp_path: Path):
    given = {"latents": torch.ones(2), "image_spec": [None, "a.png"], "size": (1, 2)}
    found = read_pickled(saved(given), "place", lambda value: True)
    assert torch.equal(found["latents"], given["latents"]) and found["size"] == (1, 2)
    with pytest.raises(CacheError, match="another program wrote it"):
        read_pickled(saved(given), "place", lambda value: False)


def test_f9_a_pickle_that_runs_code_is_refused_unrun(tmp_path: Path):
    mark = tmp_path / "ran"
    for data in (saved({"latents": Runs(mark)}), saved(torch.nn.Linear(2, 2)), pickle.dumps({"latents": Runs(mark)})):
        with pytest.raises(CacheError, match="place"):
            read_pickled(data, "place", lambda value: True)
    assert not mark.exists()


def test_f9_views_that_repeat_a_few_bytes_gigantically_are_refused():
    huge = torch.zeros(1).expand(1 << 20, 1 << 14)
    buffer = io.BytesIO()
    torch.save({"latents": huge}, buffer)
    with pytest.raises(CacheError, match="repeats stored bytes"):
        read_pickled(buffer.getvalue(), "place", lambda value: True)


def test_f9_a_compressed_archive_is_not_one_of_torch(tmp_path: Path):
    source = zipfile.ZipFile(io.BytesIO(saved({"latents": torch.zeros(1 << 20)})))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in source.namelist():
            packed.writestr(name, source.read(name))
    with pytest.raises(CacheError, match="compressed"):
        read_pickled(buffer.getvalue(), "place", lambda value: True)
