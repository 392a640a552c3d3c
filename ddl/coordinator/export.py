"""The whole model of one version as one safetensors file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from torch import Tensor

from ddl.codec.digest import sha256_file
from ddl.codec.dtypes import torch_dtype
from ddl.codec.frame import TensorPlan, plan_frame, read_frame
from ddl.coordinator.history import History
from ddl.coordinator.payloads import Payloads
from ddl.core.log import LogState
from ddl.errors import IntegrityError
from ddl.protocol.records import RunRecord
from ddl.protocol.wire import SCHEMA, canonical
from ddl.store.base import Store
from ddl.store.files import disk_errors, whole_file


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
        ConfigError: there is no such run or version; IntegrityError: an object is missing (a version
            that is not kept any more) or damaged; StoreError, also for the disk of `out`.
    """
    run = History(store, run_name).existing_run()
    log, tensors = read_version(store, run, at)
    path = out / f"{run.name}-v{log.global_version:08d}.safetensors"
    with disk_errors(f"cannot make {out}", out):
        out.mkdir(parents=True, exist_ok=True)
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


def read_version(
    store: Store, run: RunRecord, at: int | None
) -> tuple[LogState, dict[str, Tensor]]:
    """A global version, None for the newest: the log up to it, and every tensor of the model.

    If the run moves on while the newest is read, and its objects are removed, the then newest one is
    read instead.
    Raises: ConfigError: no such version; IntegrityError, StoreError.
    """
    history = History(store, run.name)
    log = history.fold(run) if at is None else history.fold_to(run, at)
    try:
        return log, dict(model_tensors(store, run, log))
    except IntegrityError:
        if at is not None or not history.follow(log):
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
