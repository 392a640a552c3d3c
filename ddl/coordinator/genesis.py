"""The beginning of a run: its model, its layout and version 0 of every fragment.

`run.json` is put last and create-once: until it is there, there is no run.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ddl import __version__
from ddl.codec.digest import sha256
from ddl.codec.dtypes import CODES, torch_dtype
from ddl.codec.frozen import encode_frozen
from ddl.config import Scalar, Settings
from ddl.coordinator.initial import load_initial
from ddl.coordinator.payloads import Payloads
from ddl.errors import StoreError, TaskError
from ddl.merge.inspect import ModelDescription, describe_model
from ddl.merge.layout import plan_layout
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import Layout, ObjectRef, RunRecord
from ddl.protocol.wire import canonical
from ddl.registry.base import shared_settings
from ddl.store.base import Store
from ddl.task import Task, TaskContext, in_file, load_task, task_digest


class Draft(NamedTuple):
    """A run that could be created: its model, its start weights, and the digest of its task."""

    description: ModelDescription
    layout: Layout
    values: Mapping[str, Tensor]
    task_digest: str


def build_model(settings: Settings, task_file: Path) -> tuple[ModelDescription, Layout]:
    """Build the task's model on the CPU, with the run's seed, and cut it into fragments.

    Raises: TaskError that names the file, ConfigError.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.run.seed)
        task = load_task(task_file, _context(settings))
    with in_file(task_file):
        description = describe_model(task.model)
        _check_storable(description)
        return description, _plan(settings, description, task)


def draft(settings: Settings, *, task_file: Path, init: Path | None) -> Draft:
    """Build what a run begins with. Reads files of this machine, and touches nothing else.

    Args:
        init: a safetensors file with the start weights under canonical names, in place of those
            that the task builds.
    Raises: TaskError, ConfigError.
    """
    description, layout = build_model(settings, task_file)
    values = {**description.tensors, **description.frozen}
    if init is not None:
        values = load_initial(init, values)
    with in_file(task_file):
        _check_finite(values)
    return Draft(description, layout, values, task_digest(task_file))


def create(
    store: Store,
    settings: Settings,
    drafted: Draft,
    *,
    now: float,
    outdone: Mapping[str, Scalar] | None = None,
) -> RunRecord | None:
    """Create the run; None if another coordinator was first.

    What was put before a failure is removed again.

    Args:
        now: Redis server time.
        outdone: see `RunRecord`.
    Raises: StoreError.
    """
    description, layout, values, digest = drafted
    name = settings.run.name
    keys = ObjectKeys(name)
    put: list[ObjectRef] = []
    try:
        payloads = Payloads(store, name, layout, settings)
        for fragment in range(layout.num_fragments):
            ref = _put_version_0(payloads, fragment, values)
            put.append(ref)
        fragments = tuple(put)
        frozen = _put_frozen(store, keys, layout, description, values)
        put += [frozen] if frozen else []
    except BaseException:
        with contextlib.suppress(StoreError):  # the first failure is the one to tell
            store.delete([ref.key for ref in put])
        raise
    run = RunRecord(
        ddl_version=__version__,
        name=name,
        lineage=secrets.token_hex(16),
        created_at=now,
        settings=shared_settings(settings),
        layout=layout,
        task_digest=digest,
        fragments=fragments,
        frozen=frozen,
        outdone=dict(outdone or {}),
    )
    return run if store.put(keys.run_record, canonical(run), mode="create") else None


def _context(settings: Settings) -> TaskContext:
    return TaskContext(
        run=settings.run.name,
        seed=settings.run.seed,
        purpose="init",
        learner=None,
        incarnation=0,
        data_seed=settings.run.seed,
        device=torch.device("cpu"),
        rank=0,
        world_size=1,
        args=settings.task.args,
    )


def _plan(settings: Settings, description: ModelDescription, task: Task) -> Layout:
    return plan_layout(
        description.infos,
        num=settings.fragments.num,
        method=settings.merge.method,
        every_steps=settings.round.every_steps,
        overrides=task.rules,
    )


def _check_storable(description: ModelDescription) -> None:
    for name, tensor in {**description.tensors, **description.frozen}.items():
        if tensor.dtype not in CODES:
            raise TaskError(
                f"tensor {name!r} of the model is {tensor.dtype}, which cannot be stored",
                hint="Convert it, or register it as a buffer with persistent=False",
            )


def _check_finite(values: Mapping[str, Tensor]) -> None:
    for name, tensor in values.items():
        if tensor.is_floating_point() and (num := int((~tensor.detach().isfinite()).sum())):
            raise TaskError(
                f"{num} of {tensor.numel()} start values of {name!r} are not finite",
                hint="See how build(ctx) initialises the model",
            )


def _put_version_0(payloads: Payloads, fragment: int, values: Mapping[str, Tensor]) -> ObjectRef:
    weights, buffers = {}, {}
    for spec in payloads.specs(fragment):
        value = values[spec.name].detach()
        if spec.kind == "parameter":
            weights[spec.name] = value.float()
        else:
            buffers[spec.name] = value.to(torch_dtype(spec.dtype, of=spec.name))
    return payloads.put_fragment(fragment, 0, weights, buffers)


def _put_frozen(
    store: Store,
    keys: ObjectKeys,
    layout: Layout,
    description: ModelDescription,
    values: Mapping[str, Tensor],
) -> ObjectRef | None:
    """Store what no round moves, parameters not trained and `local` tensors; None if all moves."""
    names = [*description.frozen, *(spec.name for spec in layout.tensors if spec.fragment < 0)]
    if not names:
        return None
    living = {**description.tensors, **description.frozen}
    data = encode_frozen({name: values[name].detach().to(living[name].dtype) for name in names})
    digest = sha256(data)
    store.put(keys.frozen(digest), data)
    return ObjectRef(key=keys.frozen(digest), bytes=len(data), sha256=digest)
