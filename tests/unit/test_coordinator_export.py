"""An export is the log's version, digest for digest, or it is not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import load_file

from ddl import config
from ddl.codec.frame import read_frame
from ddl.coordinator.export import export_for_hub, export_model
from ddl.coordinator.genesis import create, draft
from ddl.errors import ConfigError, IntegrityError
from ddl.protocol.records import RunRecord
from ddl.store.local import LocalStore
from tests.coordinating import RUN, write_run


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def created(store: LocalStore, tmp_path: Path, dtype: str = "float32") -> RunRecord:
    fragments = {"publish_dtype": dtype}
    toml = write_run(tmp_path, redis_url="redis://host/0", fragments=fragments)
    settings = config.load(toml).settings
    drafted = draft(settings, task_file=tmp_path / "task.py", init=None)
    run = create(store, settings, drafted, now=0.0)
    assert run is not None
    return run


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_export_holds_the_whole_model(store: LocalStore, tmp_path: Path, dtype: str) -> None:
    """Each tensor once, in the bytes that were published; the header says the rest."""
    run = created(store, tmp_path, dtype)
    exported = export_model(store, RUN, tmp_path / "new" / "folder")
    assert Path(exported.path).name == "tiny-v00000000.safetensors"
    tensors = load_file(exported.path)
    assert set(tensors) == {"first.weight", "first.bias", "second.weight", "seen", "frozen"}
    for ref in [*run.fragments, run.frozen]:
        assert ref is not None
        for name, stored in read_frame(store.get(ref.key)).tensors.items():
            assert tensors[name].dtype == stored.dtype
            assert tensors[name].equal(stored)
    with safe_open(exported.path, framework="pt") as file:
        header = json.loads(file.metadata()["ddl"])
    assert header["aliases"] == {"tied.weight": "second.weight"}
    assert (header["run"], header["lineage"], header["global_version"]) == (RUN, run.lineage, 0)


def test_the_same_version_gives_the_same_bytes(store: LocalStore, tmp_path: Path) -> None:
    """Wherever and whenever it is exported."""
    created(store, tmp_path)
    one, two = (export_model(store, RUN, tmp_path / name) for name in ("one", "two"))
    assert one.sha256 == two.sha256
    assert Path(one.path).stat().st_size == one.bytes


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_an_object_that_is_not_as_recorded_stops_the_export(
    store: LocalStore, tmp_path: Path, damage: str
) -> None:
    """It is named, and no file is left."""
    ref = created(store, tmp_path).fragments[1]
    data = store.get(ref.key)
    data[-1] ^= 1
    store.delete([ref.key])
    if damage == "changed":
        store.put(ref.key, data)
    with pytest.raises(IntegrityError, match=ref.key):
        export_model(store, RUN, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_not_there_cannot_be_exported(store: LocalStore, tmp_path: Path) -> None:
    """A run that does not exist, a version that does not, a folder that cannot be made."""
    with pytest.raises(ConfigError, match="no run 'tiny'"):
        export_model(store, RUN, tmp_path / "out")
    created(store, tmp_path)
    with pytest.raises(ConfigError, match=r"no version 1\. Its versions are 0 to 0"):
        export_model(store, RUN, tmp_path / "out", at=1)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot make the folder"):
        export_model(store, RUN, tmp_path / "file" / "out")


@pytest.mark.parametrize("shard_bytes", [1 << 30, 40])
def test_an_export_for_other_libraries_holds_the_whole_model_too(
    store: LocalStore, tmp_path: Path, shard_bytes: int
) -> None:
    """One file, or shards that the index finds; the very tensors of the other form, and no more."""
    created(store, tmp_path)
    whole = load_file(export_model(store, RUN, tmp_path / "one").path)
    exported = export_for_hub(store, RUN, tmp_path / "hf", shard_bytes=shard_bytes)
    folder = Path(exported.folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(exported.files)
    if shard_bytes > 40:
        assert exported.files == ("model.safetensors",)
        found = load_file(folder / "model.safetensors")
    else:
        index = json.loads((folder / exported.files[-1]).read_text())
        assert exported.files[-1] == "model.safetensors.index.json"
        assert exported.files[0] == f"model-00001-of-{len(exported.files) - 1:05d}.safetensors"
        assert index["metadata"]["total_size"] == exported.bytes
        found = {name: load_file(folder / file)[name] for name, file in index["weight_map"].items()}
        for file in exported.files[:-1]:
            shard = load_file(folder / file)
            size = sum(tensor.numel() * tensor.element_size() for tensor in shard.values())
            assert size <= shard_bytes or len(shard) == 1
    with safe_open(folder / exported.files[0], framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert found.keys() == whole.keys()
    assert all(found[name].equal(whole[name]) for name in whole)
    assert exported.bytes == sum(t.numel() * t.element_size() for t in whole.values())
