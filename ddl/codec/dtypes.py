"""Element types: the names in records, torch's types, and the codes in safetensors files."""

from __future__ import annotations

from typing import Final

import torch

from ddl.errors import ProtocolError

CODES: Final[dict[torch.dtype, str]] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Every type that can be stored, with its code in a safetensors header."""

TYPES: Final[dict[str, torch.dtype]] = {code: dtype for dtype, code in CODES.items()}

_BY_NAME: Final = {str(dtype).removeprefix("torch."): dtype for dtype in CODES}


def torch_dtype(name: str, *, of: str) -> torch.dtype:
    """The torch type that a record calls `name`, such as "float32", for the tensor `of`.

    Raises: ProtocolError: a type that cannot be stored.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        raise ProtocolError(
            f"tensor {of!r} has the element type {name}, which cannot be stored",
            hint=f"Storable are {', '.join(_BY_NAME)}",
        ) from None
