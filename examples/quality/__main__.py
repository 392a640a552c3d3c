"""How good a model each method makes of the same tokens.

    just quality [--learners 4] [--steps 2000] [--seeds 3] [--json]     the table
    just quality outer --steps 600 [...]                                outer steps, lr by momentum
    just quality lateness | codecs | modes                              what costs how much
    just quality real --learners 3 --steps 600                          processes, beside learners alone
    just quality vision --steps 600                                     digits, by a net with BatchNorm

`--plot FILE` draws a table: curves, and where each seed ended. Results lie in `build/quality`, a file
a cell: a table that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

import msgspec

from examples.quality import digits
from examples.quality.cells import Cell, Outcome, Scalar, run_all
from examples.quality.methods import train

FOLDER = Path(__file__).parents[2] / "build" / "quality"
USUAL: dict[str, Scalar] = {"outer.lr": 0.7, "outer.momentum": 0.9}
"""DiLoCo's own outer step, which most systems take."""
COOL: dict[str, Scalar] = {"outer.lr": 0.8, "outer.momentum": 0.5}
"""A cooler one, which suits runs as short as these better."""
RDA = [(0.6, 0.3), (0.6, 0.5), (0.5, 0.5), (0.8, 0.3), (0.4, 0.0), (0.8, 0.0), (1.0, 0.0)]
MEAN = [(0.7, 0.9), (0.7, 0.5), (1.0, 0.3), (1.0, 0.5), (1.4, 0.3)]


def table(learners: int, steps: int, seed: int) -> dict[str, Cell]:
    """What the others and `ddl` make of it."""
    base = Cell(method="data-parallel", learners=learners, steps=steps, seed=seed)
    return {
        "data-parallel": base,
        "synchronous 0.7/0.9": change(base, method="synchronous", settings=USUAL),
        "synchronous 0.8/0.5": change(base, method="synchronous", settings=COOL),
        "ddl": change(base, method="decoupled"),
    }


def outer(learners: int, steps: int, seed: int) -> dict[str, Cell]:
    """Outer steps: the defaults' neighbours, by RDA and by mean, at two H."""
    base = Cell(method="decoupled", learners=learners, steps=steps, seed=seed)
    cells = {
        "data-parallel": change(base, method="data-parallel"),
        "auto": change(base),
        "auto H=12": change(base, settings={"round.every_steps": 12}),
    }
    for method, pairs in (("rda", RDA), ("mean", MEAN)):
        for every in (12, 24):
            for lr, momentum in pairs:
                settings: dict[str, Scalar] = {
                    "merge.method": method,
                    "round.every_steps": every,
                    "outer.lr": lr,
                    "outer.momentum": momentum,
                }
                cells[f"{method} {lr}/{momentum} H={every}"] = change(base, settings=settings)
    return cells


def lateness(learners: int, steps: int, seed: int) -> dict[str, Cell]:
    """One learner four times slower, one that joins at half, slow links, three in ten contributions expired."""
    base = Cell(method="decoupled", learners=learners, steps=steps, seed=seed)
    return {
        "ddl": base,
        "one 4 x slower": change(base, pace=(4.0,)),
        "one joins at half": change(base, late=1),
        "links that take 18 steps each way": change(base, lag=18.0),
        "30 % expired": change(base, drop=0.3),
    }


def codecs(learners: int, steps: int, seed: int) -> dict[str, Cell]:
    """Bytes on the wire."""
    base = Cell(method="decoupled", learners=learners, steps=steps, seed=seed)
    return {
        "fp32": base,
        "bf16": change(base, settings={"codec.up": "bf16"}),
        "int8": change(base, settings={"codec.up": "int8"}),
        "int4": change(base, settings={"codec.up": "int4"}),
        "int4 up and down": change(base, settings={"codec.up": "int4", "codec.down": "int4-step"}),
    }


def modes(learners: int, steps: int, seed: int) -> dict[str, Cell]:
    """What a learner does with what it has not handed in when a version comes; fragments."""
    base = Cell(method="decoupled", learners=learners, steps=steps, seed=seed)
    cells = {
        mode: change(base, settings={"adopt.mode": mode})
        for mode in ("carry", "overwrite", "blend")
    }
    for num in (1, 2, 8):
        fragments: dict[str, Scalar] = {"fragments.num": num, "round.in_flight": min(2, num)}
        cells[f"{num} fragments"] = change(base, settings=fragments)
    return cells


def real(learners: int, steps: int, seed: int) -> dict[str, Cell]:
    """A run of real processes, what virtual time says of it, and the best learner without it."""
    base = Cell(method="alone", learners=learners, steps=steps, seed=seed)
    return {
        "alone, the best of them": base,
        "ddl, processes": change(base, method="processes"),
        "ddl": change(base, method="decoupled"),
    }


def vision(learners: int, steps: int, seed: int) -> dict[str, Cell]:
    """The same methods on images, where what BatchNorm has seen is merged, too."""
    base = Cell(method="data-parallel", learners=learners, steps=steps, seed=seed)
    return {
        "data-parallel": base,
        "alone, the best of them": change(base, method="alone"),
        "synchronous 0.7/0.9": change(base, method="synchronous", settings=USUAL),
        "ddl": change(base, method="decoupled"),
    }


def change(cell: Cell, **changes: object) -> Cell:
    return msgspec.structs.replace(cell, **changes)


TABLES = {
    "table": table,
    "outer": outer,
    "lateness": lateness,
    "codecs": codecs,
    "modes": modes,
    "real": real,
    "vision": vision,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="?", default="table", choices=TABLES)
    parser.add_argument("--learners", type=int, default=4, help="M")
    parser.add_argument("--steps", type=int, default=2_000, help="inner steps of each learner")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw it (.svg, .png)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    asked = parser.parse_args()
    rows: dict[str, list[Cell]] = defaultdict(list)
    for seed in range(asked.seeds):
        for label, cell in TABLES[asked.what](asked.learners, asked.steps, seed).items():
            rows[label].append(cell)
    cells = [cell for row in rows.values() for cell in row]
    labels = {cell.name: label for label, row in rows.items() for cell in row}
    found: dict[str, Outcome] = {}
    on_images = asked.what == "vision"
    work, folder = (digits.train, asked.folder / "digits") if on_images else (train, asked.folder)
    for outcome in run_all(cells, folder, train=work, processes=asked.processes):
        found[outcome.cell.name] = outcome
        print(
            f"{len(found):3} of {len(labels)}  {outcome.heldout_loss:.4f}  "
            f"{labels[outcome.cell.name]} (seed {outcome.cell.seed}, {outcome.seconds:.0f} s)",
            file=sys.stderr,
        )
    losses = {label: [found[cell.name].heldout_loss for cell in row] for label, row in rows.items()}
    first = mean(next(iter(losses.values())))
    seeds = "1 seed" if asked.seeds == 1 else f"{asked.seeds} seeds"
    title = f"M = {asked.learners}, {asked.steps} steps each, {seeds}"
    unit = "nats" if on_images else "nats/byte"
    if asked.plot:
        from examples.quality.plot import draw

        outcomes = {label: [found[cell.name] for cell in row] for label, row in rows.items()}
        draw(asked.plot, outcomes, title=title, unit=unit)
    if asked.json:
        ratios = {label: mean(row) / first for label, row in losses.items()}
        runs = [_run(labels[cell.name], found[cell.name]) for cell in cells]
        print(msgspec.json.encode({"runs": runs, "ratio_to_dp": ratios}).decode())
        return 0
    width = max(map(len, losses))
    answers = ", and percent of right answers" if on_images else ""
    print(f"{title}: held-out {unit}{answers}")
    for label, row in losses.items():
        each = " ".join(f"{loss:.4f}" for loss in row)
        right = [found[cell.name].accuracy for cell in rows[label]]
        known = [percent for percent in right if percent is not None]
        print(
            f"{label:{width}}  {mean(row):.4f}  {100 * (mean(row) / first - 1):+5.2f} %  ({each})"
            + (f"  {mean(known):.2f} %" if known else "")
        )
    return 0


def _run(label: str, outcome: Outcome) -> dict[str, object]:
    cell = outcome.cell
    accuracy = {} if outcome.accuracy is None else {"accuracy": outcome.accuracy}
    return {
        "method": label,
        "learners": cell.learners,
        "seed": cell.seed,
        "settings": cell.settings,
        "tokens": outcome.tokens,
        "heldout_loss": outcome.heldout_loss,
        **accuracy,
    }


if __name__ == "__main__":
    raise SystemExit(main())
