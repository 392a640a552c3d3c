"""`ddl.data.Units`: each row once an epoch, in a seeded order, from where a former life stopped."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ddl.data import Files, TokenFile, Units
from ddl.data.order import shuffled
from ddl.errors import ConfigError, TaskError
from ddl.protocol.units import Grant, UnitReply
from tests.data_sets import Numbers, read_lines

NUM_ROWS = 23
NUM_UNITS = 5
"""Of 5 rows each, the last two of 4."""


def units(**changes: Any) -> Units:
    arguments: dict[str, Any] = {"unit_size": 5, "batch_size": 2, "seed": 1} | changes
    return Units(Numbers(NUM_ROWS), **arguments)


def unit_rows(unit: int) -> range:
    """Every so many-th row of the data, so that a unit is a sample of all of it."""
    return range(unit, NUM_ROWS, NUM_UNITS)


def rows(batches: Units, count: int) -> list[int]:
    """The rows of the next batches, until there are `count`."""
    found: list[int] = []
    for batch in batches:
        found += batch.tolist()
        if len(found) >= count:
            break
    return found


# ---- order --------------------------------------------------------------------------------------


def test_an_order_is_the_same_on_every_machine() -> None:
    """Numbers written down once: they follow from the key, and from nothing else."""
    assert shuffled(8, 0, "units", 0).tolist() == [2, 3, 1, 7, 6, 4, 0, 5]
    assert shuffled(8, 0, "units", 1).tolist() != shuffled(8, 0, "units", 0).tolist()
    assert sorted(shuffled(1000, "x").tolist()) == list(range(1000))


def test_an_epoch_has_every_row_once() -> None:
    """Also where units and batches do not divide the data; a batch never mixes two units."""
    batches = list(islice(units(), 3 * 3 + 2 * 2))  # three units of 5 rows, two of 4
    assert sorted(torch.cat(batches).tolist()) == list(range(NUM_ROWS))
    assert all(len({row % NUM_UNITS for row in batch.tolist()}) == 1 for batch in batches)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    """The same seed has the same order; another epoch or seed has not."""
    two = rows(units(), 2 * NUM_ROWS)
    assert two == rows(units(), 2 * NUM_ROWS)
    first, second = two[:NUM_ROWS], two[NUM_ROWS:]
    assert sorted(first) == sorted(second)
    assert first != second
    assert rows(units(seed=2), NUM_ROWS) != first


def test_batch_sizes_may_differ_between_learners() -> None:
    """They cut the same units: the plan does not name them."""
    assert units(batch_size=2).plan == units(batch_size=3).plan
    assert rows(units(batch_size=3), NUM_ROWS) == rows(units(batch_size=2), NUM_ROWS)
    others = (
        units(seed=2),
        units(unit_size=6),
        Units(Numbers(24), unit_size=5, batch_size=2, seed=1),
    )
    assert units().plan not in {other.plan for other in others}


def test_static_shards_share_the_data() -> None:
    """k of n: no row twice, none left out, over all epochs together."""
    shards = [units(shard=(k, 3)) for k in range(3)]
    # two epochs have ten units: the shards read 4, 3 and 3 of them
    read = [
        list(islice(_unit_numbers(shard), n)) for shard, n in zip(shards, (4, 3, 3), strict=True)
    ]
    assert sorted(u for numbers in read for u in numbers) == sorted(2 * list(range(5)))


def _unit_numbers(batches: Units) -> Any:
    last = None
    for batch in batches:
        unit = batch[0].item() % NUM_UNITS
        ticket = next(iter(batches.places()))
        if ticket != last:
            yield unit
        last = ticket


# ---- position -----------------------------------------------------------------------------------


def test_the_position_is_json_and_survives_a_restart() -> None:
    """In the middle of a unit, after any number of batches."""
    whole = rows(units(), 2 * NUM_ROWS)
    for num_batches in range(16):
        first = units()
        before = [row for batch in islice(first, num_batches) for row in batch.tolist()]
        second = units()
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        after = rows(second, 2 * NUM_ROWS - len(before))
        assert (before + after)[: 2 * NUM_ROWS] == whole


def test_iterating_anew_goes_on() -> None:
    """A loop that was left and begun again does not begin the data again."""
    batches = units()
    assert rows(batches, 4) + rows(batches, NUM_ROWS) == rows(units(), NUM_ROWS + 4)[: NUM_ROWS + 4]


def test_a_position_in_other_data_is_left_alone() -> None:
    """Another seed, another unit size, another shard: its numbers mean something else."""
    state = units(seed=2).state_dict()
    list(islice(other := units(seed=2), 4))
    state = other.state_dict()
    batches = units()
    batches.load_state_dict(state)
    assert rows(batches, NUM_ROWS) == rows(units(), NUM_ROWS)


# ---- a global batch -------------------------------------------------------------------------------


def test_a_global_batch_is_shared(tmp_path: Path) -> None:
    """The share is asked for before each batch, or each file; who reads alone takes all of it."""
    global_batch: dict[str, Any] = {"unit_size": 20, "batch_size": None, "global_batch": 7}
    batches = units(**global_batch)
    assert len(next(iter(batches))) == 7
    told = iter((1 / 2, 1 / 3, 1 / 100))
    batches = units(**global_batch, shard=(0, 2))
    batches.bind(learner="ada", incarnation=1, share=lambda: next(told))
    assert [len(batch) for batch in islice(batches, 3)] == [4, 2, 1]
    batches = Units(_files(tmp_path), global_batch=4, seed=1, shard=(0, 1))
    batches.bind(learner="ada", incarnation=1, share=lambda: 0.5)
    assert [len(batch) for batch in islice(batches, 6)] == [
        len(batch) for batch in islice(Units(_files(tmp_path), batch_size=2, seed=1), 6)
    ]


# ---- claims -------------------------------------------------------------------------------------


def test_claimed_units_are_read_and_told() -> None:
    """Begun with the first batch, finished once the batch after the last one is asked for."""
    batches = units()
    claims = batches.bind(learner="ada", incarnation=1)
    assert claims is not None
    claims.call()
    claims.answer(UnitReply(granted=(Grant(7, 0), Grant(9, 3))))
    stream = iter(batches)
    epoch, unit = batches.unit_of(7)
    assert epoch == 1
    read = [next(stream).tolist() for _ in range(3)]
    assert {row % NUM_UNITS for batch in read for row in batch} == {unit}
    call = claims.call()
    assert [(h.ticket, h.begun) for h in call.held] == [(7, True), (9, False)]
    assert call.finished == ()
    claims.answer(UnitReply())
    rest = next(stream).tolist()
    assert {row % NUM_UNITS for row in rest} == {batches.unit_of(9)[1]}
    assert [r.ticket for r in claims.call().finished] == [7]
    assert batches.places() == {9: min(3 + 2, len(unit_rows(batches.unit_of(9)[1])))}


def test_a_unit_that_was_lost_is_not_read_on() -> None:
    """The next batch is of another one, and it is neither finished nor kept."""
    batches = units()
    claims = batches.bind(learner="ada", incarnation=1)
    assert claims is not None
    claims.call()
    claims.answer(UnitReply(granted=(Grant(0, 0), Grant(1, 0))))
    stream = iter(batches)
    next(stream)
    claims.call()
    claims.answer(UnitReply(lost=(0,)))
    assert {row % NUM_UNITS for row in next(stream).tolist()} == {batches.unit_of(1)[1]}
    assert 0 not in batches.places()
    call = claims.call()
    assert call.finished == ()
    assert 0 not in {h.ticket for h in call.held}


def test_a_new_life_holds_on_to_what_the_former_had_begun() -> None:
    """It goes on in the middle of it; what had only been taken is given back."""
    first = units()
    before = rows(first, 2)
    second = units()
    second.load_state_dict(first.state_dict())
    claims = second.bind(learner="ada", incarnation=2)
    assert claims is not None
    assert [h.ticket for h in claims.call().held] == [0]
    claims.answer(UnitReply(granted=(Grant(1, 0),)))
    mine = unit_rows(second.unit_of(0)[1])
    after = rows(second, len(mine) - 2)[: len(mine) - 2]
    assert sorted(before + after) == list(mine)


def test_a_unit_read_to_its_end_by_the_former_life_is_finished() -> None:
    """Its end had not been told: it is now, and no row is read again."""
    first = units()
    rows(first, len(unit_rows(first.unit_of(0)[1])))
    second = units()
    second.load_state_dict(first.state_dict())
    claims = second.bind(learner="ada", incarnation=2)
    assert claims is not None
    claims.call()
    claims.answer(UnitReply(granted=(Grant(1, 0),)))
    assert {row % NUM_UNITS for row in rows(second, 2)} == {second.unit_of(1)[1]}
    assert [r.ticket for r in claims.call().finished] == [0]


def test_a_static_shard_claims_nothing() -> None:
    """Whoever divides the data by hand has divided it."""
    assert units(shard=(0, 2)).bind(learner="ada", incarnation=1) is None


# ---- workers ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_workers_change_nothing_but_the_speed(start_method: str) -> None:
    """Same batches, and a position that does not count what workers have only read ahead."""
    plain = units()
    expected = [batch.tolist() for batch in islice(plain, 6)]
    batches = units(num_workers=2, start_method=start_method)
    assert [batch.tolist() for batch in islice(batches, 6)] == expected
    assert {t: r for t, r in batches.places().items() if r} == plain.places()
    second = units()
    second.load_state_dict(batches.state_dict())
    assert rows(second, 10) == rows(plain, 10)


@pytest.mark.slow
def test_files_with_workers(tmp_path: Path) -> None:
    """A worker reads a whole file; batches and position are those of a single process."""
    files = _files(tmp_path)
    plain = Units(files, batch_size=2, seed=1)
    expected = [batch.tolist() for batch in islice(plain, 5)]
    batches = Units(files, batch_size=2, seed=1, num_workers=2)
    assert [batch.tolist() for batch in islice(batches, 5)] == expected
    assert {t: r for t, r in batches.places().items() if r} == plain.places()


# ---- files and tokens ---------------------------------------------------------------------------


def _files(folder: Path) -> Files:
    """Files of 5, 0, 3 and 1 rows."""
    first = 0
    for number, count in enumerate((5, 0, 3, 1)):
        lines = "".join(f"{row}\n" for row in range(first, first + count))
        (folder / f"{number}.txt").write_text(lines)
        first += count
    return Files(folder.glob("*.txt"), read_lines)


def test_files_are_units(tmp_path: Path) -> None:
    """Each file from its beginning to its end, the files in a seeded order, empty ones passed over."""
    files = _files(tmp_path)
    read = rows(Units(files, batch_size=2, seed=1), 18)
    assert sorted(read[:9]) == sorted(read[9:]) == list(range(9))
    for file in (range(5), range(5, 8), [8]):
        places = [read[:9].index(row) for row in file]
        assert places == list(range(places[0], places[0] + len(places)))
    resumed = Units(files, batch_size=2, seed=1)
    first = Units(files, batch_size=2, seed=1)
    before = [row for batch in islice(first, 4) for row in batch.tolist()]
    resumed.load_state_dict(first.state_dict())
    assert before + rows(resumed, 9 - len(before)) == read[:9]


def test_files_are_numbered_by_name_alone(tmp_path: Path) -> None:
    """In another folder, given in another order, they are the same data; renamed, they are not."""
    plans = []
    for folder, names in (("here", "ab"), ("there", "ba"), ("other", "ac")):
        (tmp_path / folder).mkdir()
        paths = [tmp_path / folder / name for name in names]
        for path in paths:
            path.write_text(f"{ord(path.name)}\n")
        batches = Units(Files(paths, read_lines), batch_size=1, seed=1)
        plans.append((batches.plan, rows(batches, 2)))
    assert plans[0] == plans[1]
    assert plans[0][0] != plans[2][0]


def test_tokens_come_in_windows(tmp_path: Path) -> None:
    """Each window begins where the inputs of the one before ended; the file is mapped, not read."""
    path = tmp_path / "tokens.bin"
    np.arange(60_000, 60_011, dtype=np.uint16).tofile(path)
    tokens = TokenFile(path, context=3)
    assert len(tokens) == 3
    assert tokens[1].tolist() == [60_003, 60_004, 60_005, 60_006]
    assert tokens[1].dtype == torch.int64
    with pytest.raises(IndexError):
        tokens[3]
    batch = next(iter(Units(tokens, unit_size=2, batch_size=2, seed=0)))
    assert batch.shape[1] == 4


def test_a_memory_map_does_not_travel(tmp_path: Path) -> None:
    """A worker process is sent the file's name, not its contents."""
    import pickle

    path = tmp_path / "tokens.bin"
    np.zeros(1_000_000, dtype=np.uint16).tofile(path)
    tokens = TokenFile(path, context=10)
    tokens[0]
    sent = pickle.dumps(tokens)
    assert len(sent) < 1000
    assert torch.equal(pickle.loads(sent)[5], tokens[5])


# ---- what cannot work ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unit_size": None}, "unit_size is missing"),
        ({"unit_size": 0}, "unit_size must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"batch_size": None}, "give Units either batch_size or global_batch"),
        ({"global_batch": 8}, "give Units either batch_size or global_batch"),
        ({"batch_size": None, "global_batch": 0}, "global_batch must be at least 1"),
        ({"shard": (2, 2)}, "shard 2 of 2 does not exist"),
        ({"name": "a/b"}, "data name 'a/b' is not usable"),
        ({"num_workers": 1, "start_method": "fork"}, 'Use "forkserver" or "spawn"'),
    ],
)
def test_wrong_arguments_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        units(**changes)


def test_data_that_cannot_be_cut_is_named(tmp_path: Path) -> None:
    """What is no map-style dataset, has no rows, or is a file that holds no window."""
    with pytest.raises(ConfigError, match="generator cannot be cut into units"):
        Units((i for i in range(3)), unit_size=1, batch_size=1, seed=0)
    with pytest.raises(ConfigError, match="Numbers has no rows"):
        Units(Numbers(0), unit_size=1, batch_size=1, seed=0)
    with pytest.raises(ConfigError, match="each file is a unit"):
        Units(_files(tmp_path), unit_size=1, batch_size=1, seed=0)
    with pytest.raises(ConfigError, match="no path"):
        Files([], read_lines)
    (tmp_path / "short.bin").write_bytes(b"123")
    with pytest.raises(ConfigError, match="no whole number of uint16 tokens"):
        TokenFile(tmp_path / "short.bin", context=1)
    (tmp_path / "short.bin").write_bytes(b"1234")
    with pytest.raises(ConfigError, match="has 2 tokens, no window of 2"):
        TokenFile(tmp_path / "short.bin", context=2)
    (tmp_path / "empty").touch()
    with pytest.raises(TaskError, match="no unit of the data 'train' has any rows"):
        next(iter(Units(Files([tmp_path / "empty"], read_lines), batch_size=1, seed=0)))


def test_what_a_worker_could_not_import_is_refused() -> None:
    """A task file has a private name that no other process knows."""
    local = type("Local", (Numbers,), {"__module__": "_ddl_task_0123"})
    with pytest.raises(ConfigError, match="Move it to a module beside the task file"):
        Units(local(5), unit_size=1, batch_size=1, seed=0, num_workers=1)
