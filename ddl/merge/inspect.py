"""What of a torch model takes part in a run: its tensors under canonical names.

A model may be wrapped (DDP, `torch.compile`, FSDP, activation checkpointing) on one machine and bare
on another; the names that travel must not show it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ddl.errors import TaskError
from ddl.merge.layout import TensorInfo

WRAPPERS: Final = frozenset(
    {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
)
"""Attributes under which wrappers hold the model they wrap."""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """The tensors of a model, in the model's own order.

    Attributes:
        infos: what the layout is planned from: trained parameters and persistent buffers, tied
            ones once.
        tensors: the living tensor of each of them, by canonical name.
        frozen: the living parameters that are not trained, by canonical name; exports need them.
    """

    infos: tuple[TensorInfo, ...]
    tensors: Mapping[str, Tensor]
    frozen: Mapping[str, Tensor]


def canonical_name(name: str) -> str:
    """The name without wrappers, wherever in the path they stand."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def describe_model(model: nn.Module) -> ModelDescription:
    """List the tensors of `model` that take part in a run.

    A tensor found under several names (tied weights, a module used twice) counts once, under the
    first; the others are its aliases. It is an embedding if any module that holds it is one.
    Buffers that are not persistent are left out, as in a state dict.

    Raises:
        TaskError: a tensor without a shape, a parameter that is not of real floating type, a name that two different
            tensors would share without wrappers, or a model without a trained parameter.
    """
    found: dict[tuple[object, ...], _Found] = {}
    owners: dict[str, _Found] = {}
    for raw, tensor, in_embedding in _walk(model):
        name = canonical_name(raw)
        row = found.setdefault(_identity(tensor), _Found(tensor, []))
        if owners.setdefault(name, row) is not row:
            raise TaskError(
                f"two different tensors of the model would be called {name!r} "
                f"(one of them is {raw!r})",
                hint=f"Do not call a part of the model one of {', '.join(sorted(WRAPPERS))}",
            )
        if name not in row.names:
            row.names.append(name)
        row.in_embedding |= in_embedding
    live = [row for row in found.values() if not row.is_frozen]
    if not any(row.is_parameter for row in live):
        raise TaskError("the model has no parameter with requires_grad: there is nothing to train")
    return ModelDescription(
        infos=tuple(row.info() for row in live),
        tensors={row.names[0]: row.tensor for row in live},
        frozen={row.names[0]: row.tensor for row in found.values() if row.is_frozen},
    )


@dataclass(slots=True)
class _Found:
    """One tensor and the canonical names it was found under."""

    tensor: Tensor
    names: list[str]
    in_embedding: bool = False

    @property
    def is_parameter(self) -> bool:
        return isinstance(self.tensor, nn.Parameter)

    @property
    def is_frozen(self) -> bool:
        return self.is_parameter and not self.tensor.requires_grad

    def info(self) -> TensorInfo:
        if self.is_parameter and not self.tensor.is_floating_point():
            raise TaskError(
                f"parameter {self.names[0]!r} is {self.tensor.dtype}; "
                "only parameters of real floating type can be trained",
                hint="Make it a buffer, or set requires_grad to False",
            )
        return TensorInfo(
            name=self.names[0],
            shape=tuple(self.tensor.shape),
            dtype=str(self.tensor.dtype).removeprefix("torch."),
            kind="parameter" if self.is_parameter else "buffer",
            is_embedding=self.in_embedding,
            aliases=tuple(self.names[1:]),
        )


def _walk(model: nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
    """Raw name, tensor and whether an embedding holds it; what is tied comes once per name."""
    for path, module in model.named_modules(remove_duplicate=False):
        in_embedding = isinstance(module, nn.Embedding | nn.EmbeddingBag)
        prefix = f"{path}." if path else ""
        hidden = module._non_persistent_buffers_set  # noqa: SLF001 -- torch offers no other way
        own = [
            *module.named_parameters(recurse=False, remove_duplicate=False),
            *module.named_buffers(recurse=False, remove_duplicate=False),
        ]
        for name, tensor in own:
            if name in hidden:
                continue
            if is_lazy(tensor):
                raise TaskError(
                    f"tensor {prefix + name!r} of the model has no shape yet",
                    hint="Run the model once on a batch in build()",
                )
            yield prefix + name, tensor, in_embedding


def _identity(tensor: Tensor) -> tuple[object, ...]:
    """Equal for two names of one tensor, also where each wraps the same memory anew."""
    if tensor.numel() == 0 or tensor.is_meta:
        return (id(tensor),)
    memory = tensor.untyped_storage().data_ptr()
    return (tensor.device, memory, tensor.storage_offset(), tensor.shape, tensor.stride())
