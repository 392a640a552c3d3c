"""`ddl.data.Units`: batches of a data set that a run's learners share."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from torch.utils.data import default_collate

from ddl.data.claims import Claims
from ddl.data.files import Files
from ddl.data.order import shuffled
from ddl.data.source import FileRows, Loading, Rows, Source
from ddl.data.tickets import Shard, Tickets
from ddl.errors import ConfigError, TaskError
from ddl.protocol.units import check_data_name


def _all() -> float:
    """The share of who reads alone."""
    return 1.0


class Units:
    """Batches without end, each row of the data once an epoch over all learners of the run.

    Give it to `Task.batches`, or to `Learner.join(..., batches=...)` and iterate it yourself. The
    learner then claims one unit after the other for it, a few ahead, and goes on where a former
    life of it had stopped. Without a learner, or with `shard`, it reads alone.

    A batch holds rows of one unit, so the last one of a unit may be smaller. A unit is finished
    when the batch after its last one is asked for. What is read twice (the unit of a learner that
    died, or of one that was cut off) is counted, with the reason, in the log.

    Args:
        data: a map-style dataset, or `Files`. Every learner needs the same one; of a map-style
            dataset its length is compared, and its attribute `fingerprint` where it has one.
        batch_size: rows of a batch; may differ between machines.
        global_batch: in its place, rows of one batch of every learner together. Each takes its share
            (`Progress.share`), rounded, and at least one row, so that as learners come and go the run
            trains on as many rows in a step as before. What workers have read ahead, and a file that
            is begun, keep the share of when they were asked for.
        seed: of the order; the same for all learners, so `ctx.seed`, never `ctx.data_seed`.
        unit_size: rows of a unit at most, where `data` is map-style: every so many-th of its rows, so
            that each unit is a sample of all the data, and learners teach the model alike. A few
            minutes of one learner's work is a good size: what dies with a learner is one unit at
            most, and is read again.
        name: tells one data set of a run from another.
        shard: (k, n) reads the k-th of n equal shares instead of claiming, k from 0.
        collate_fn: makes a batch of a list of rows; torch's own by default.
        num_workers: processes that read ahead.
        start_method: how those are started. Never "fork": it copies the locks of the learner's
            threads in whatever state they are. So `data` and `collate_fn` must be importable there:
            define them in a module beside the task file, not in it.
        prefetch_factor: batches (or files) that each worker reads ahead.
        pin_memory: batches lie in page-locked memory.
    Raises: ConfigError for arguments that cannot work.
    """

    def __init__(
        self,
        data: Any,
        *,
        batch_size: int | None = None,
        global_batch: int | None = None,
        seed: int,
        unit_size: int | None = None,
        name: str = "train",
        shard: tuple[int, int] | None = None,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
        num_workers: int = 0,
        start_method: str = "forkserver",
        prefetch_factor: int = 2,
        pin_memory: bool = False,
    ) -> None:
        if (batch_size is None) == (global_batch is None):
            raise ConfigError("give Units either batch_size or global_batch")
        most = global_batch if batch_size is None else batch_size
        assert most is not None
        if most < 1:
            what = "global_batch" if batch_size is None else "batch_size"
            raise ConfigError(f"{what} must be at least 1, got {most}")
        self._share: Callable[[], float] = _all

        def batch_rows() -> int:
            return most if batch_size is not None else max(1, round(most * self._share()))

        loading = Loading(
            batch_rows=batch_rows,
            most_rows=most,
            collate=collate_fn,
            num_workers=num_workers,
            start_method=start_method,
            prefetch_factor=prefetch_factor,
            pin_memory=pin_memory,
        )
        self.name = check_data_name(name)
        self._seed = seed
        self._source = _cut(data, unit_size, loading)
        self._shard = _checked(shard) if shard is not None else None
        self._tickets: Tickets = Shard(*(self._shard or (0, 1)))
        self._open: dict[int, _Open] = {}
        self._loaded: Mapping[str, Any] = {}
        self._order = lru_cache(maxsize=4)(self._shuffled_units)

    # ---- reading --------------------------------------------------------------------------------

    @property
    def num_units(self) -> int:
        """Units of an epoch."""
        return self._source.num_units

    @property
    def plan(self) -> str:
        """Names how the data is cut and ordered; learners of one run must have the same."""
        text = f"{self._source.fingerprint}\n{self._seed}"
        return f"{self.num_units} units/{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def unit_of(self, ticket: int) -> tuple[int, int]:
        """(epoch, unit) of a ticket, as the log names it."""
        epoch, place = divmod(ticket, self.num_units)
        return epoch, self._order(epoch)[place]

    def __iter__(self) -> Iterator[Any]:
        """Batches from the present position on; ends never. Only the newest iterator counts."""
        asked: deque[_Asked] = deque()
        # anew, so that what an iterator before had asked for counts no more
        self._open = {ticket: _Open(open_.rows) for ticket, open_ in self._open.items()}
        barren = 0
        for parts in self._source.load(self._pieces(asked)):
            ticket, open_, last = asked.popleft()
            barren += 1
            for rows, batch in parts:
                if self._has_lost(ticket, open_):
                    break
                self._tickets.begin(ticket)
                open_.rows += rows  # before the yield: who has the batch has consumed it
                barren = 0
                yield batch
            if last and not self._has_lost(ticket, open_):
                del self._open[ticket]
                self._tickets.finish(ticket)
            if barren > 2 * self.num_units:
                raise TaskError(f"no unit of the data {self.name!r} has any rows")

    def _pieces(self, asked: deque[_Asked]) -> Iterator[Any]:
        """Keys of what is to be loaded; workers draw on them far ahead of what is trained on."""
        for ticket, open_ in list(self._open.items()):
            yield from self._pieces_of(ticket, open_, asked)
        while True:
            ticket, rows = self._tickets.take()
            open_ = self._open[ticket] = _Open(rows)
            yield from self._pieces_of(ticket, open_, asked)

    def _pieces_of(self, ticket: int, open_: _Open, asked: deque[_Asked]) -> Iterator[Any]:
        num = 0
        epoch, unit = self.unit_of(ticket)
        for piece in self._source.pieces(unit, open_.rows, self._seed, "rows", epoch, unit):
            if self._has_lost(ticket, open_):
                return
            num += 1
            asked.append(_Asked(ticket, open_, piece.last))
            yield piece.key
        if num == 0:  # read to its end by a former life, which had no time to tell
            del self._open[ticket]
            self._tickets.finish(ticket)

    def _has_lost(self, ticket: int, open_: _Open) -> bool:
        if self._open.get(ticket) is open_ and self._tickets.is_lost(ticket):
            del self._open[ticket]
        return self._open.get(ticket) is not open_

    def _shuffled_units(self, epoch: int) -> list[int]:
        order: list[int] = shuffled(self.num_units, self._seed, "units", epoch).tolist()
        return order

    # ---- across lives ---------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The position: units that are begun, with the rows read, and what was claimed. JSON."""
        return {
            "plan": self.plan,
            "shard": list(self._shard or ()),
            "open": [[ticket, open_.rows] for ticket, open_ in self._open.items()],
            "tickets": self._tickets.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; a position in data that is cut in another way is left alone."""
        if state["plan"] != self.plan or state["shard"] != list(self._shard or ()):
            return
        self._open = {ticket: _Open(rows) for ticket, rows in state["open"]}
        self._loaded = state["tickets"]
        if isinstance(self._tickets, Shard):
            self._tickets.next = self._loaded.get("next", self._tickets.next)

    # ---- with a learner -------------------------------------------------------------------------

    def bind(
        self, *, learner: str, incarnation: int, share: Callable[[], float] = _all
    ) -> Claims | None:
        """Read what this learner claims from now on; None for a static shard, which claims nothing.

        Called by the learner, before the first batch and after `load_state_dict`. `share`: its part of
        a global batch now.
        """
        self._share = share
        if self._shard is not None:
            return None
        # what was taken and not begun is given back: it is as good as new to anyone
        self._open = {ticket: open_ for ticket, open_ in self._open.items() if open_.rows}
        kept = dict(self._loaded.get("kept", ()))
        claims = Claims(
            name=self.name,
            plan=self.plan,
            num_units=self.num_units,
            life=f"{learner}/{incarnation}",
            ahead=2 + self._source.units_ahead,
            kept=[(ticket, kept.get(ticket, "claimed")) for ticket in self._open],
            finished=self._loaded.get("finished", ()),
        )
        self._tickets = claims
        return claims

    def places(self) -> dict[int, int]:
        """Rows read of each ticket that is begun."""
        return {ticket: open_.rows for ticket, open_ in self._open.items()}


class _Open:
    """A ticket that is being read; `rows` of it were trained on."""

    __slots__ = ("rows",)

    def __init__(self, rows: int) -> None:
        self.rows = rows


class _Asked(NamedTuple):
    """A piece on its way; `last` of its ticket or not."""

    ticket: int
    open_: _Open
    last: bool


def _cut(data: Any, unit_size: int | None, loading: Loading) -> Source:
    if isinstance(data, Files):
        if unit_size is not None:
            raise ConfigError(
                f"unit_size={unit_size} has no meaning for Files: each file is a unit"
            )
        return FileRows(data, loading)
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise ConfigError(
            f"{type(data).__name__} cannot be cut into units: it has no __len__ and __getitem__",
            hint="Give a map-style dataset, or ddl.data.Files for what is read file by file",
        )
    if unit_size is None:
        raise ConfigError(
            "unit_size is missing", hint="Give the rows of a unit, some minutes' work of a learner"
        )
    return Rows(data, unit_size, loading)


def _checked(shard: tuple[int, int]) -> tuple[int, int]:
    k, n = shard
    if not 0 <= k < n:
        raise ConfigError(f"shard {k} of {n} does not exist", hint="k goes from 0 to n - 1")
    return k, n
