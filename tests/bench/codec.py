"""From fp32 values to the bytes of a contribution and back, for a fragment of 32M elements.

    just bench codec [--json] [--rounds N] [--one-core]

Encoding writes a whole safetensors frame into memory that is there already and checks that all is
finite; the digest is left out (see `just bench gate` for its speed). References in the same run: memcpy
of the fp32 values, and `safetensors.torch.save`. `up_ratio` is the size of a payload by that of fp32;
`down_ratio` that of a step of compressed publication by that of the version, published as fp32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import safetensors.torch
import torch

from ddl.codec.codecs import CODECS, Codec
from ddl.codec.contribution import decode_contribution
from ddl.codec.fragment import encode_fragment
from ddl.codec.payload import plan_payload, write_payload
from ddl.codec.step import encode_step
from tests.bench.contributions import (
    METADATA,
    SHAPES,
    Memcpy,
    specs,
    values,
)
from tests.bench.report import Figure, options, report, take_turns

NUMEL = sum(math.prod(shape) for shape in SHAPES)


def decode(codec: Codec, payload: memoryview, out: torch.Tensor) -> None:
    """All values of a payload, tensor by tensor, into one reused tensor."""
    for coded in decode_contribution(payload, specs(), codec.tag).deltas.values():
        coded.read(0, coded.numel, out)


def main() -> int:
    asked = options(__doc__ or "")
    given = values(0)
    out = torch.zeros(NUMEL)
    memory = {
        name: memoryview(bytearray(plan_payload(specs(), codec, METADATA).num_bytes))
        for name, codec in CODECS.items()
    }
    cases: dict[str, Callable[[], object]] = {}
    for name, codec in CODECS.items():
        cases[f"{name} encode"] = partial(
            write_payload, specs(), given, {}, codec, METADATA, memory[name]
        )
        cases[f"{name} decode"] = partial(decode, codec, memory[name], out)
    cases["memcpy"] = Memcpy(4 * NUMEL)
    cases["safetensors"] = partial(safetensors.torch.save, given)
    seconds = take_turns(cases, asked)

    figures: dict[str, Figure] = {}
    for name in CODECS:
        encode_s, decode_s = seconds[f"{name} encode"], seconds[f"{name} decode"]
        if name in ("fp32", "bf16"):
            share = seconds["memcpy"] / encode_s
            gain = seconds["safetensors"] / encode_s
            figures[f"{name}.encode_vs_memcpy"] = Figure(
                share, "ratio", 0.5, gain, "safetensors.torch.save of fp32"
            )
        else:
            goal = 0.5 if name == "int4" else None
            share = seconds["memcpy"] / encode_s
            figures[f"{name}.encode_gelem_per_s"] = Figure(
                NUMEL / encode_s / 1e9, "Gelem/s", goal, share, "memcpy of fp32"
            )
        figures[f"{name}.decode_s"] = Figure(
            decode_s, "s", None, seconds["memcpy"] / decode_s, "memcpy of fp32"
        )
        size = len(memory[name]) / len(memory["fp32"])
        figures[f"{name}.up_ratio"] = Figure(
            size, "ratio", 0.14 if name == "int4" else None, at_most=True
        )
    zeros = {name: torch.zeros_like(value) for name, value in given.items()}
    step = encode_step(specs(), given, zeros, {}, METADATA).buffer
    size = len(step) / len(encode_fragment(specs(), given, {}, "float32", METADATA).buffer)
    figures["int4.down_ratio"] = Figure(size, "ratio", 0.14, at_most=True)
    return report("codec", figures, asked)


if __name__ == "__main__":
    raise SystemExit(main())
