"""The whole model of one version, as one safetensors file or as other libraries load it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
import safetensors.torch
from torch import Tensor

from ddl.codec.digest import sha256_file
from ddl.codec.dtypes import torch_dtype
from ddl.codec.frame import TensorPlan, plan_frame, read_frame
from ddl.coordinator.history import History
from ddl.coordinator.payloads import Payloads
from ddl.core.log import LogState
from ddl.errors import ConfigError, MissingObjectError
from ddl.protocol.records import RunRecord
from ddl.protocol.wire import SCHEMA, canonical
from ddl.store.base import Store
from ddl.store.files import disk_errors, whole_file

SHARD_BYTES: Final = 5_000_000_000
"""Of a file for Hugging Face's libraries, whose own default this is."""


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """What `ddl export --json` prints.

    `seq` is the log record that made the version; `sha256` is that of the file.
    """

    schema: int = SCHEMA
    run: str
    lineage: str
    global_version: int
    seq: int
    path: str
    bytes: int
    sha256: str


def export_model(store: Store, run_name: str, out: Path, *, at: int | None = None) -> Export:
    """Write `out/RUN-vNNNNNNNN.safetensors`, which appears only when it is whole.

    It holds every tensor of the model under its canonical name: parameters in the type in which
    they are published, all else in its own. Names of tied tensors beyond the first are left out;
    the header lists them. Every object read is checked against the log.

    Args:
        out: a folder, made if need be.
        at: global version; None for the newest.
    Raises:
        ConfigError: no such run or version, or `out` can be no folder; RefusedError: the version is
            not kept; IntegrityError: an object is missing or damaged; StoreError, also for the disk
            of `out`.
    """
    run = History(store, run_name).existing_run()
    log, tensors = read_version(store, run, at)
    path = out / f"{run.name}-v{log.global_version:08d}.safetensors"
    _make(out)
    _write(path, run, log, tensors)
    with disk_errors(f"cannot read {path}", out):
        digest, size = sha256_file(path), path.stat().st_size
    return Export(
        run=run.name,
        lineage=run.lineage,
        global_version=log.global_version,
        seq=log.seq,
        path=str(path),
        bytes=size,
        sha256=digest,
    )


class HubExport(msgspec.Struct, frozen=True, kw_only=True):
    """What `ddl export --format hf --json` prints. `files`: in `folder`, the index last if there is one."""

    schema: int = SCHEMA
    run: str
    lineage: str
    global_version: int
    seq: int
    folder: str
    files: tuple[str, ...]
    bytes: int


def export_for_hub(
    store: Store,
    run_name: str,
    out: Path,
    *,
    at: int | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> HubExport:
    """Write the weights as Hugging Face's libraries load them from a folder.

    `out/model.safetensors`; or, if they are more than `shard_bytes`, `model-00001-of-N.safetensors`
    and so on, with `model.safetensors.index.json` once all of them are whole. A `config.json` is of
    the model's own code, and is not made here. Names of tied tensors beyond the first are left out,
    as these libraries do.
    Raises: as `export_model`.
    """
    run = History(store, run_name).existing_run()
    log, tensors = read_version(store, run, at)
    shards = _shards(tensors, shard_bytes)
    names = [f"model-{n:05d}-of-{len(shards):05d}.safetensors" for n in range(1, len(shards) + 1)]
    if len(shards) == 1:
        names = ["model.safetensors"]
    _make(out)
    for name, shard in zip(names, shards, strict=True):
        with whole_file(out / name) as file:
            file.write_at(0, memoryview(safetensors.torch.save(shard, {"format": "pt"})))
    total = sum(_num_bytes(tensor) for tensor in tensors.values())
    if len(shards) > 1:
        places = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        index = {"metadata": {"total_size": total}, "weight_map": places}
        names.append("model.safetensors.index.json")
        with whole_file(out / names[-1]) as file:
            file.write_at(0, memoryview(msgspec.json.format(msgspec.json.encode(index))))
    return HubExport(
        run=run.name,
        lineage=run.lineage,
        global_version=log.global_version,
        seq=log.seq,
        folder=str(out),
        files=tuple(names),
        bytes=total,
    )


def _shards(tensors: Mapping[str, Tensor], shard_bytes: int) -> list[dict[str, Tensor]]:
    """In order, each full up to `shard_bytes`; a tensor larger than that has one of its own."""
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if size and size + _num_bytes(tensor) > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor.contiguous()
        size += _num_bytes(tensor)
    return shards


def _num_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot make the folder {out}: {error.strerror}",
            hint="Name another one, which this user may write to",
        ) from error


def read_version(
    store: Store, run: RunRecord, at: int | None
) -> tuple[LogState, dict[str, Tensor]]:
    """A global version, None for the newest: the log up to it, and every tensor of the model.

    If the run moves on while the newest is read, and its objects are removed, the then newest one is
    read instead.
    Raises: ConfigError: no such version; RefusedError: it is not kept; IntegrityError, StoreError.
    """
    history = History(store, run.name)
    if at is not None:
        log = history.fold_to(run, at)
        with history.version_to_read(run, at):
            return log, dict(model_tensors(store, run, log))
    log = history.fold(run)
    try:
        return log, dict(model_tensors(store, run, log))
    except MissingObjectError:
        if not history.follow(log):
            raise
    return log, dict(model_tensors(store, run, log))


def model_tensors(store: Store, run: RunRecord, log: LogState) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the model that `log` ends with, under its canonical name.

    Raises: IntegrityError, StoreError.
    """
    payloads = Payloads.of(store, run)
    published = torch_dtype(run.settings.fragments.publish_dtype, of="the model")
    for fragment, head in enumerate(log.fragments):
        version = payloads.fragment(fragment, head.published)
        # exact: what was published in bf16 is bf16 still, whatever type it was read into
        yield from ((name, value.to(published)) for name, value in version.weights.items())
        yield from version.buffers.items()
    if run.frozen is not None:
        yield from read_frame(payloads.read(run.frozen)).tensors.items()


def _write(path: Path, run: RunRecord, log: LogState, tensors: Mapping[str, Tensor]) -> None:
    aliases = {alias: spec.name for spec in run.layout.tensors for alias in spec.aliases}
    plan = plan_frame(
        [TensorPlan(name, t.dtype, tuple(t.shape)) for name, t in tensors.items()],
        canonical(
            {
                "schema": SCHEMA,
                "kind": "model",
                "run": run.name,
                "lineage": run.lineage,
                "global_version": log.global_version,
                "seq": log.seq,
                "aliases": aliases,
            }
        ),
    )
    data = bytearray(plan.num_bytes)
    for name, place in plan.lay_out(data).items():
        place.copy_(tensors[name])
    with whole_file(path) as file:
        file.write_at(0, memoryview(data))
