"""How ddl reads and writes the user's model: one fragment at a time, through host fp32.

`ModelPort` serves any `nn.Module` whose parameters are plain tensors, on one device. A port for
sharded parameters (DTensor) can stand beside it with the same methods.

On a GPU, `read` starts copies to pinned memory on a side stream that first waits for the training
stream, and the training stream waits for nothing: the reader calls `Copy.wait` in its own thread.
The next optimizer step must not overwrite what is still being copied, so the training stream is
made to wait for the copy on the device (not the host) before it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ddl.errors import RefusedError
from ddl.merge.inspect import describe_model
from ddl.protocol.records import Layout, TensorSpec


@dataclass(frozen=True, slots=True)
class Copy:
    """A fragment's values on the host: parameters fp32, buffers in their own type."""

    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    _done: torch.cuda.Event | None = None

    def wait(self) -> None:
        """Block until the values are there; never called by the training thread."""
        if self._done is not None:
            self._done.synchronize()


Masters = Callable[[Tensor], Tensor | None]
"""Gives the fp32 copy that an optimizer keeps of a parameter of low precision, if it keeps one now."""


class ModelPort:
    """Reads and writes the tensors of `layout` in `model`.

    Args:
        masters: where the optimizer keeps master copies, it is those that are read, and both that
            are written; else the next step would bring back what was there before.
    Raises: RefusedError when the model is not the run's; the first difference is named.
    """

    def __init__(self, model: nn.Module, layout: Layout, masters: Masters | None = None) -> None:
        self._tensors = check_model(model, layout)
        self._layout = layout
        self._masters = masters
        self.device = next(
            (t.device for t in self._tensors.values() if t.device.type != "cpu"),
            torch.device("cpu"),
        )
        self._stream = (
            torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            if self.device.type == "cuda"
            else None
        )

    def specs(self, fragment: int) -> Sequence[TensorSpec]:
        """The tensors of one fragment, in the layout's order."""
        return self._layout.by_fragment[fragment]

    def read(self, fragment: int) -> Copy:
        """Copy one fragment's values to the host."""
        specs = self.specs(fragment)
        done = None
        if self._stream is None:
            values = {s.name: self._host(s) for s in specs}
        else:
            training = torch.cuda.current_stream(self.device)
            self._stream.wait_stream(training)
            with torch.cuda.stream(self._stream):
                values = {s.name: self._host(s) for s in specs}
                done = torch.cuda.Event()  # type: ignore[no-untyped-call]
                done.record(self._stream)
            training.wait_stream(self._stream)
        return Copy(
            {s.name: values[s.name] for s in specs if s.kind == "parameter"},
            {s.name: values[s.name] for s in specs if s.kind == "buffer"},
            done,
        )

    def current(self, fragment: int) -> dict[str, Tensor]:
        """One fragment's parameters as they are now, detached; on the CPU without a copy."""
        return {
            s.name: self._trained(s.name).cpu()
            for s in self.specs(fragment)
            if s.kind == "parameter"
        }

    def mastered(self, fragment: int) -> frozenset[str]:
        """The parameters of one fragment of which there is a master copy."""
        names = (s.name for s in self.specs(fragment) if s.kind == "parameter")
        return frozenset(name for name in names if self._master(name) is not None)

    def assign(self, values: Mapping[str, Tensor]) -> None:
        """Set tensors by name, in place, so that optimizers and compiled graphs keep them."""
        with torch.no_grad():
            for name, value in values.items():
                for place in (self._master(name), self._tensors[name]):
                    if place is not None:
                        place.copy_(value, non_blocking=self._stream is not None)

    def _master(self, name: str) -> Tensor | None:
        return self._masters(self._tensors[name]) if self._masters is not None else None

    def _trained(self, name: str) -> Tensor:
        """What the optimizer works on: the master copy, or the parameter itself."""
        master = self._master(name)
        return (self._tensors[name] if master is None else master).detach()

    def _host(self, spec: TensorSpec) -> Tensor:
        source = self._trained(spec.name)
        dtype = torch.float32 if spec.kind == "parameter" else source.dtype
        out = torch.empty(source.shape, dtype=dtype, pin_memory=self._stream is not None)
        return out.copy_(source, non_blocking=self._stream is not None)


def check_model(model: nn.Module, layout: Layout) -> Mapping[str, Tensor]:
    """The living tensors of `model` that `layout` has, by canonical name.

    Raises: RefusedError when it is not the run's model; the first difference is named. TaskError.
    """
    tensors = describe_model(model).tensors
    expected = {spec.name: spec for spec in layout.tensors}
    hint = "Start the learner with the task that the run was started with"
    for name, spec in expected.items():
        if name not in tensors:
            raise RefusedError(f"this model lacks {name!r}, which the run's model has", hint=hint)
        found = tensors[name]
        shape, dtype = tuple(found.shape), str(found.dtype).removeprefix("torch.")
        if shape != spec.shape:
            raise RefusedError(
                f"this model is not the run's: {name!r} has shape {shape}, the run {spec.shape}",
                hint=hint,
            )
        if dtype != spec.dtype:
            raise RefusedError(
                f"this model is not the run's: {name!r} is {dtype}, the run has {spec.dtype}",
                hint=hint,
            )
    unknown = sorted(set(tensors) - set(expected))
    if unknown:
        raise RefusedError(
            f"this model has {unknown[0]!r}, which the run's model lacks "
            f"({len(unknown)} such in all)",
            hint=hint,
        )
    return tensors
