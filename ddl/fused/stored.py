"""A flat fp32 tensor in one of the stored forms that the loops read, as they take it."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from torch import Tensor

from ddl.fused.sizes import BF16, FP32, INT4, INT8

Form = Literal["fp32", "bf16", "int8", "int4"]

_CODES: Final[dict[Form, int]] = {"fp32": FP32, "bf16": BF16, "int8": INT8, "int4": INT4}


class Stored(NamedTuple):
    """Where the elements lie; both tensors are contiguous, on the CPU, and not written to.

    Attributes:
        form: fp32, bf16, or blocks of 64 as `ddl.codec.codecs` describes them.
        values: the elements, (numel,) of any shape or whole blocks.
        scales: bf16, one for each block; None where there are no blocks.
    """

    form: Form
    values: Tensor
    scales: Tensor | None = None

    @property
    def code(self) -> int:
        return _CODES[self.form]

    @property
    def values_at(self) -> int:
        """Address of the first element. Good while `values` is alive."""
        return self.values.data_ptr()

    @property
    def scales_at(self) -> int:
        """Address of the first scale, or 0. Good while `scales` is alive."""
        return 0 if self.scales is None else self.scales.data_ptr()
