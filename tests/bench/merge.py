"""Merging 8 contributions of a fragment of 32M elements, outer step included.

    just bench merge [--json] [--rounds N] [--one-core]

From the stored bytes of contributions to the next master and momentum, in fresh memory, by RDA. The
references take turns with it: the pinned plain torch merge (`reference.py`; a mean, in place), ddl's
own torch kernel, and memcpy. A merge must read all contributions, master and momentum, and write
master and momentum; `vs_memcpy` is the time in which memcpy copies as many bytes as these are, over
the time of the merge. (memcpy reads and writes each byte that it copies; whoever counts both sees half
of the figure.)
"""

from __future__ import annotations

import math
import resource
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ddl.codec.codecs import CODECS
from ddl.codec.contribution import Contribution
from ddl.fused.choice import loops
from ddl.merge.choice import chosen_kernel
from ddl.merge.examine import examine
from ddl.merge.kernel import Kernel
from ddl.merge.step import Offer, merge_fragment
from ddl.merge.torch_kernel import TORCH
from tests.bench.contributions import LEARNERS, SHAPES, Memcpy, contributions, specs
from tests.bench.reference import merge_int4
from tests.bench.report import Figure, options, report, take_turns

NUMEL = sum(math.prod(shape) for shape in SHAPES)
OUTER_BYTES = 16 * NUMEL
"""Master and momentum, read and written."""
WEIGHTS = [1000.0 + i for i in range(LEARNERS)]
LR, MU = 0.6, 0.3


class Outer:
    """Master and momentum of the fragment, and the merges that start from them."""

    def __init__(self) -> None:
        self.master = {spec.name: torch.randn(spec.shape) for spec in specs()}
        self.momentum = {spec.name: torch.randn(spec.shape) * 1e-3 for spec in specs()}

    def merge(self, offers: Sequence[Offer], kernel: Kernel) -> None:
        merge_fragment(
            specs(),
            offers,
            master=self.master,
            momentum=self.momentum,
            lr=LR,
            mu=MU,
            kernel=kernel,
        )

    def merge_plainly(self, rows: Sequence[Contribution]) -> None:
        """The pinned reference, tensor by tensor."""
        for spec in specs():
            parts = [row.deltas[spec.name].parts for row in rows]
            merge_int4(
                [(part["|q"], part["|s"]) for part in parts],
                WEIGHTS,
                self.master[spec.name].view(-1),
                self.momentum[spec.name].view(-1),
                lr=LR,
                mu=MU,
            )


def offers_of(rows: Sequence[Contribution]) -> list[Offer]:
    return [
        Offer(
            weight=weight,
            deltas=row.deltas,
            norms=examine(row.deltas, row.buffers).norms,
            buffers=row.buffers,
        )
        for row, weight in zip(rows, WEIGHTS, strict=True)
    ]


def stored_bytes(rows: Sequence[Contribution]) -> int:
    parts: list[Tensor] = [p for row in rows for d in row.deltas.values() for p in d.parts.values()]
    return sum(part.numel() * part.element_size() for part in parts)


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    asked = options(__doc__ or "")
    if loops() is None:
        raise SystemExit("the fused kernel is not to be had: install numba, unset DDL_KERNEL")
    kernel, figures = chosen_kernel(NUMEL), {}
    bare_mb = peak_mb()
    outer, copy = Outer(), Memcpy(4 * NUMEL)
    for name in ("int4", "int8", "bf16", "fp32"):
        rows = contributions(CODECS[name], LEARNERS)
        offers = offers_of(rows)
        if name == "int4":  # the first: nothing larger has been in memory yet
            outer.merge(offers, kernel)
            # contributions, old and new state, the two buffers of memcpy
            needed_mb = (stored_bytes(rows) + OUTER_BYTES + 8 * NUMEL) / 2**20
            figures["peak_rss_mb"] = Figure(
                peak_mb() - bare_mb, "MB", 1.1 * needed_mb, at_most=True
            )
        cases: dict[str, Callable[[], object]] = {
            "fused": partial(outer.merge, offers, kernel),
            "memcpy": copy,
        }
        if name == "int4":
            cases["reference"] = partial(outer.merge_plainly, rows)
            cases["torch kernel"] = partial(outer.merge, offers, TORCH)
        seconds = take_turns(cases, asked)

        rate = LEARNERS * NUMEL / seconds["fused"] / 1e9
        figures[f"{name}.gelem_per_s"] = Figure(rate, "Gelem/s", 1.0 if name == "int4" else None)
        if name == "int4":
            for key, case in (("vs_torch", "reference"), ("vs_torch_kernel", "torch kernel")):
                gain = seconds[case] / seconds["fused"]
                figures[f"int4.{key}"] = Figure(gain, "ratio", 4.0 if case == "reference" else None)
        least_s = seconds["memcpy"] * (stored_bytes(rows) + OUTER_BYTES) / (4 * NUMEL)
        goal = 0.5 if name in ("bf16", "fp32") else None
        figures[f"{name}.vs_memcpy"] = Figure(least_s / seconds["fused"], "ratio", goal)
        figures[f"{name}.merge_s"] = Figure(seconds["fused"], "s")
    return report("merge", figures, asked)


if __name__ == "__main__":
    raise SystemExit(main())
