"""A learner's own state across its lives: the inner optimizer's moments and the place in the data.

The run's weights always come from the run; what would be lost with a process is only this. It lies
in one safetensors file: tensors as they are, everything else as JSON in its metadata. Nothing is
unpickled. Hyperparameters (learning rate, betas, ...) are not restored: the code's are in force.

A state that does not fit (another optimizer, other parameters, an unreadable file) is left alone:
the learner starts cold and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import msgspec
from torch import Tensor
from torch.optim import Optimizer

from ddl.codec.dtypes import CODES
from ddl.codec.frame import TensorPlan, plan_frame, read_frame
from ddl.errors import DdlError, IntegrityError, ProtocolError
from ddl.protocol import wire

COST_RATIO: Final = 200.0
"""A save may take one part in this many of the training thread's time."""

LEAST_GAP_S: Final = 30.0


@runtime_checkable
class Positioned(Protocol):
    """Batches that know where they are."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


class WarmRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the metadata holds. `scalars[i]` and the tensors `i/NAME` are the state of parameter i.

    `shapes` are those of the optimizer's parameters in its order: a state for others must not be
    loaded.
    """

    schema: int = wire.SCHEMA
    lineage: str
    optimizer: str
    shapes: tuple[tuple[int, ...], ...]
    scalars: dict[str, dict[str, Any]]
    batches: dict[str, Any] | None = None


class WarmState:
    """Saves and restores one learner's state.

    Args:
        path: the file; written whole, by rename.
        lineage: a state of another run is not used.
        optimizer: the inner optimizer.
        batches: what it trains on; its position is kept if it is `Positioned`.
    """

    def __init__(
        self,
        path: Path,
        *,
        lineage: str,
        optimizer: Optimizer,
        batches: object = None,
    ) -> None:
        self._path = path
        self._lineage = lineage
        self._optimizer = optimizer
        self._batches = batches if isinstance(batches, Positioned) else None
        self._next_at: float | None = None

    def is_due(self, now: float) -> bool:
        """Whether it is time to save again; the first time comes `LEAST_GAP_S` after the start."""
        if self._next_at is None:
            self._next_at = now + LEAST_GAP_S
        return now >= self._next_at

    def took(self, now: float, seconds: float) -> None:
        """The training thread spent so long on the last `copy`: the next one waits accordingly."""
        self._next_at = now + max(LEAST_GAP_S, COST_RATIO * seconds)

    def copy(self) -> bytearray:
        """The state as it is now, as the bytes of the file. In the training thread.

        Raises: DdlError when the optimizer's state holds something that has no place in the file.
        """
        scalars: dict[str, dict[str, Any]] = {}
        tensors: dict[str, Tensor] = {}
        for index, state in self._states():
            for name, value in state.items():
                if isinstance(value, Tensor):
                    tensors[f"{index}/{name}"] = value.detach()
                else:
                    scalars.setdefault(index, {})[name] = value
        unknown = sorted({str(t.dtype) for t in tensors.values() if t.dtype not in CODES})
        if unknown:
            raise DdlError(
                f"the optimizer's state holds {unknown[0]} tensors, which have no file form"
            )
        record = WarmRecord(
            lineage=self._lineage,
            optimizer=type(self._optimizer).__name__,
            shapes=self._shapes(),
            scalars=scalars,
            batches=self._batches.state_dict() if self._batches is not None else None,
        )
        try:
            metadata = wire.canonical(record)
        except (TypeError, ValueError) as error:
            raise DdlError(
                f"the state of the optimizer or of the batches cannot be kept as JSON: {error}"
            ) from error
        plan = plan_frame(
            [TensorPlan(name, t.dtype, tuple(t.shape)) for name, t in tensors.items()], metadata
        )
        data = bytearray(plan.num_bytes)
        for name, view in plan.lay_out(data).items():
            view.copy_(tensors[name])
        return data

    def write(self, data: bytearray) -> None:
        """Put the bytes of `copy` in place of the last ones. Raises: OSError."""
        temporary = self._path.with_suffix(".part")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        temporary.replace(self._path)

    def restore(self) -> str:
        """Load what a former life left. Returns what came of it, a sentence; empty if nothing is there."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"starts cold: {self._path} cannot be read ({error.strerror})"
        try:
            frame = read_frame(data)
            record = wire.parse(frame.metadata, WarmRecord, what=str(self._path))
        except (IntegrityError, ProtocolError) as error:
            return f"starts cold: {error}"
        if reason := self._misfit(record):
            return f"starts cold: the state of its former life {reason}"
        self._load(record, frame.tensors)
        return "resumes with the optimizer state of its former life"

    def _misfit(self, record: WarmRecord) -> str:
        if record.lineage != self._lineage:
            return "belongs to another run"
        if record.optimizer != type(self._optimizer).__name__:
            return f"is of {record.optimizer}, the optimizer is {type(self._optimizer).__name__}"
        if record.shapes != self._shapes():
            return "is of other parameters"
        return ""

    def _load(self, record: WarmRecord, tensors: Mapping[str, Tensor]) -> None:
        state: dict[int, dict[str, Any]] = {
            int(index): dict(values) for index, values in record.scalars.items()
        }
        for key, tensor in tensors.items():
            index, _, name = key.partition("/")
            # a copy: the optimizer changes it in place, and the file's bytes are freed
            state.setdefault(int(index), {})[name] = tensor.clone()
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state, "param_groups": groups})
        if self._batches is not None and record.batches is not None:
            self._batches.load_state_dict(record.batches)

    def _states(self) -> Iterable[tuple[str, Mapping[str, Any]]]:
        return ((str(i), s) for i, s in self._optimizer.state_dict()["state"].items())

    def _shapes(self) -> tuple[tuple[int, ...], ...]:
        groups = self._optimizer.param_groups
        return tuple(tuple(p.shape) for g in groups for p in g["params"])
