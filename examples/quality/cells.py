"""Cells of the quality tables: what is trained how, and what came out; kept as JSON, one file a cell."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

import msgspec
import torch

Method = Literal["data-parallel", "synchronous", "decoupled", "processes", "alone"]
Scalar = bool | int | float | str

RECIPE = 5
"""Raise it when a change to this example makes earlier results incomparable."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One training.

    Attributes:
        learners: M. Every method sees the same M x steps batches.
        steps: inner steps of each learner.
        seed: of the start weights and of the data's order.
        settings: dotted settings that differ from the defaults; for "synchronous" `outer.*`, `round.every_steps`.
        pace: seconds a step of each learner, 1 where none is given: 4 is four times slower.
        late: how many of the learners join at half the budget.
        lag: seconds from a snapshot to its announcement, and from a version to its adoption; 0: a tenth each.
        drop: share of contributions that are taken out, with the receipt "expired".
    """

    method: Method
    learners: int = 4
    steps: int = 2_000
    seed: int = 0
    settings: dict[str, Scalar] = {}
    pace: tuple[float, ...] = ()
    late: int = 0
    lag: float = 0.0
    drop: float = 0.0

    @property
    def name(self) -> str:
        """Of its file: readable, and another one for every other cell."""
        text = msgspec.json.encode((RECIPE, self), order="sorted")
        short = f"{self.method}-m{self.learners}-n{self.steps}-s{self.seed}"
        return f"{short}-{hashlib.sha256(text).hexdigest()[:10]}"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came out of a cell.

    Attributes:
        tokens: that the model was trained on; of "decoupled", those merged.
        heldout_loss: nats, per byte where the work is text.
        accuracy: percent, where there are answers that are right or wrong.
        curve: tokens, and the held-out loss after so many; ends with those of the whole.
        versions: outer steps.
    """

    cell: Cell
    tokens: int
    heldout_loss: float
    accuracy: float | None = None
    versions: int = 0
    curve: tuple[tuple[int, float], ...] = ()
    seconds: float = 0.0


def read(cell: Cell, folder: Path) -> Outcome | None:
    """The outcome of a cell that was run before."""
    file = folder / f"{cell.name}.json"
    return msgspec.json.decode(file.read_bytes(), type=Outcome) if file.exists() else None


def run_all(
    cells: Iterable[Cell],
    folder: Path,
    *,
    train: Callable[[Cell], Outcome],
    processes: int = 2,
) -> Iterator[Outcome]:
    """Outcomes of all cells, as they come; those that were run before come first, from their files."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = []
    for cell in {cell.name: cell for cell in cells}.values():
        known = read(cell, folder)
        if known is None:
            missing.append(cell)
        else:
            yield known
    missing.sort(key=lambda cell: -cell.learners * cell.steps)
    for outcome in _trained(missing, train, processes):
        file = folder / f"{outcome.cell.name}.json"
        scratch = file.with_suffix(".part")
        scratch.write_bytes(msgspec.json.format(msgspec.json.encode(outcome)))
        scratch.replace(file)
        yield outcome


def _trained(
    cells: Sequence[Cell], train: Callable[[Cell], Outcome], processes: int
) -> Iterator[Outcome]:
    if processes == 1 or len(cells) == 1:
        yield from (_timed(train, cell) for cell in cells)
        return
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=_one_thread) as pool:
        running = [pool.submit(_timed, train, cell) for cell in cells]
        try:
            for future in as_completed(running):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _one_thread() -> None:
    torch.set_num_threads(1)


def _timed(train: Callable[[Cell], Outcome], cell: Cell) -> Outcome:
    started = time.monotonic()
    outcome = train(cell)
    return msgspec.structs.replace(outcome, seconds=round(time.monotonic() - started, 1))
