"""What units are cut from, and how their rows become batches, with worker processes or without.

With workers the batches still come in the order in which they were asked for: that is how the
reader knows which rows have been trained on, however far ahead the workers are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils.data import DataLoader, default_collate

from ddl.data.files import Files
from ddl.data.order import shuffled
from ddl.errors import ConfigError
from ddl.task import MODULE_PREFIX

Parts = Iterable[tuple[int, Any]]
"""Batches, each with the number of its rows."""


@dataclass(frozen=True, kw_only=True)
class Loading:
    """How batches are made; see `Units` for the arguments.

    Attributes:
        batch_rows: rows of the next batch, asked before each.
        most_rows: what it gives at most.
    """

    batch_rows: Callable[[], int]
    most_rows: int
    collate: Callable[[list[Any]], Any] = default_collate
    num_workers: int = 0
    start_method: str = "forkserver"
    prefetch_factor: int = 2
    pin_memory: bool = False

    def check(self, *travelling: object) -> None:
        """Refuse what would fail or hang in a worker, to which `travelling` is sent.

        Raises: ConfigError.
        """
        if not self.num_workers:
            return
        if self.start_method == "fork":
            raise ConfigError(
                'start_method is "fork": a forked worker inherits the locks of the learner\'s '
                "threads as they happen to be, and may wait for one for ever",
                hint='Use "forkserver" or "spawn"',
            )
        for thing in travelling:
            module = getattr(thing, "__module__", type(thing).__module__)
            if module.startswith(MODULE_PREFIX):
                raise ConfigError(
                    f"{thing!r} is defined in the task file, which worker processes cannot import",
                    hint="Move it to a module beside the task file, or use num_workers=0",
                )

    def loader(self, dataset: Any, **how: Any) -> Iterator[Any]:
        """A DataLoader's iterator; draws nothing from torch's global generator."""
        workers: dict[str, Any] = {}
        if self.num_workers:
            workers = {
                "num_workers": self.num_workers,
                "multiprocessing_context": self.start_method,
                "prefetch_factor": self.prefetch_factor,
            }
        generator = torch.Generator()
        generator.seed()
        return iter(
            DataLoader(dataset, pin_memory=self.pin_memory, generator=generator, **workers, **how)
        )


class Piece(NamedTuple):
    """What is loaded in one go: `key` says what, `last` whether the unit ends with it."""

    key: Any
    last: bool


class Source(Protocol):
    """Data cut into units."""

    num_units: int
    fingerprint: str
    """Equal on two machines only if their units are, as far as can be told without reading all."""
    units_ahead: int
    """Units that workers may be ahead of training."""

    def pieces(self, unit: int, rows: int, *order: Any) -> Iterator[Piece]:
        """A unit without its first `rows` rows, in the order that `order` is the key of."""
        ...

    def load(self, keys: Iterator[Any]) -> Iterator[Parts]:
        """The batches of each piece, in the order of `keys`, which workers draw on ahead."""
        ...


class Rows:
    """A map-style dataset; each unit is every `num_units`-th row of it, `unit_size` of them or fewer.

    So a unit is a sample of the whole. Were its rows neighbours, each learner would be taught by its own
    corner of the data for a while, and what they hand in would agree less (ARCHITECTURE.md, 13).
    Raises: ConfigError.
    """

    def __init__(self, dataset: Any, unit_size: int, loading: Loading) -> None:
        num_rows = len(dataset)
        if num_rows < 1:
            raise ConfigError(f"the dataset {type(dataset).__name__} has no rows")
        if unit_size < 1:
            raise ConfigError(f"unit_size must be at least 1, got {unit_size}")
        loading.check(dataset, loading.collate)
        self._dataset = dataset
        self._num_rows = num_rows
        self._loading = loading
        self.num_units = -(-num_rows // unit_size)
        told = getattr(dataset, "fingerprint", "")
        self.fingerprint = f"{num_rows} rows by {unit_size} {told}"
        batches_ahead = loading.num_workers * loading.prefetch_factor
        self.units_ahead = -(-batches_ahead * loading.most_rows // unit_size)

    def pieces(self, unit: int, rows: int, *order: Any) -> Iterator[Piece]:
        size = len(range(unit, self._num_rows, self.num_units))
        left = (unit + self.num_units * shuffled(size, *order)[rows:]).tolist()
        at = 0
        while at < len(left):
            end = at + self._loading.batch_rows()
            yield Piece(left[at:end], last=end >= len(left))
            at = end

    def load(self, keys: Iterator[Any]) -> Iterator[Parts]:
        sizes: deque[int] = deque()  # a batch does not tell how many rows it has

        def noted() -> Iterator[Sequence[int]]:
            for indices in keys:
                sizes.append(len(indices))
                yield indices

        collate = self._loading.collate
        for batch in self._loading.loader(self._dataset, batch_sampler=noted(), collate_fn=collate):
            yield [(sizes.popleft(), batch)]


class FileRows:
    """`Files`; a unit is a file. A worker reads a whole file before it hands its batches over."""

    def __init__(self, files: Files, loading: Loading) -> None:
        loading.check(files.read, loading.collate)
        self._reader = _FileReader(files, loading.collate)
        self._loading = loading
        self.num_units = len(files)
        self.fingerprint = files.fingerprint
        self.units_ahead = loading.num_workers * loading.prefetch_factor

    def pieces(self, unit: int, rows: int, *order: Any) -> Iterator[Piece]:  # noqa: ARG002
        yield Piece((unit, rows, self._loading.batch_rows()), last=True)

    def load(self, keys: Iterator[Any]) -> Iterator[Parts]:
        if not self._loading.num_workers:
            return map(self._reader.batches, keys)
        return self._loading.loader(
            self._reader, batch_size=None, sampler=keys, collate_fn=_as_they_are
        )


class _FileReader:
    """A map-style dataset whose items are all batches of a file."""

    def __init__(self, files: Files, collate: Callable[[list[Any]], Any]) -> None:
        self._files = files
        self._collate = collate

    def __getitem__(self, key: tuple[int, int, int]) -> list[tuple[int, Any]]:
        return list(self.batches(key))

    def batches(self, key: tuple[int, int, int]) -> Iterator[tuple[int, Any]]:
        """Of the file `key[0]`, without its first `key[1]` rows, `key[2]` in a batch."""
        unit, rows_before, batch_rows = key
        rows = islice(self._files.read(self._files.paths[unit]), rows_before, None)
        while part := list(islice(rows, batch_rows)):
            yield len(part), self._collate(part)


def _as_they_are(parts: Any) -> Any:
    return parts
