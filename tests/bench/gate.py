"""What the gate does with a contribution's values at arrival: norms, and whether all are finite.

    just bench gate [--json] [--rounds N] [--one-core]

One contribution of 32M elements in each codec, straight from its stored form; GB/s are those of the
decoded fp32. The references take turns with it: what one would write in torch for fp32
(`x.isfinite().all()` and `x.norm()`), memcpy of the decoded bytes, and SHA-256 of as many bytes on
one thread, since a payload's digest is checked too.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import partial

from ddl.codec.codecs import CODECS
from ddl.codec.contribution import Contribution
from ddl.merge.examine import examine
from tests.bench.contributions import SHAPES, Memcpy, contributions
from tests.bench.report import Figure, options, report, take_turns

NUM_BYTES = 4 * sum(math.prod(shape) for shape in SHAPES)
GOAL_GB_PER_S = 5.0


def check(row: Contribution) -> None:
    if examine(row.deltas, row.buffers).bad:
        raise SystemExit("the contribution of this benchmark is not finite")


def check_plainly(row: Contribution) -> None:
    for delta in row.deltas.values():
        value = delta.whole()
        if not value.isfinite().all() or value.norm() < 0:
            raise SystemExit("the contribution of this benchmark is not finite")


def main() -> int:
    asked = options(__doc__ or "")
    rows = {name: contributions(codec, 1)[0] for name, codec in CODECS.items()}
    cases: dict[str, Callable[[], object]] = {
        name: partial(check, row) for name, row in rows.items()
    }
    cases["torch"] = partial(check_plainly, rows["fp32"])
    cases["memcpy"] = Memcpy(NUM_BYTES)
    cases["sha256"] = partial(hashlib.sha256, bytes(NUM_BYTES))
    seconds = take_turns(cases, asked)

    rates = {name: NUM_BYTES / seconds[name] / 1e9 for name in seconds}
    slowest = min(rates[name] for name in CODECS)
    figures = {
        "check_gb_per_s": Figure(
            slowest, "GB/s", GOAL_GB_PER_S, slowest / rates["memcpy"], "memcpy"
        )
    }
    for name in CODECS:
        figures[f"{name}.gb_per_s"] = Figure(
            rates[name], "GB/s", None, rates[name] / rates["torch"], "isfinite and norm in torch"
        )
    for name in ("torch", "memcpy", "sha256"):
        figures[f"reference.{name}_gb_per_s"] = Figure(rates[name], "GB/s")
    return report("gate", figures, asked)


if __name__ == "__main__":
    raise SystemExit(main())
