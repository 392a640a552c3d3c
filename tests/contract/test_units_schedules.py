"""Random schedules of learners that come, go, die, sleep and are cut off, against a real Redis."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pytest

from ddl.core.units import holds, ranges_of
from ddl.data import Units
from ddl.data.claims import Claims
from ddl.protocol.units import UnitsDone
from tests.contract.units_world import World

NUM_ROWS = 46
UNIT_SIZE = 5
NUM_UNITS = 10
EPOCHS = 2
NUM_SCHEDULES = 50


class Life:
    """One life of a learner: reads batches, and takes its claims to Redis and back."""

    def __init__(self, world: World, name: str, incarnation: int, former: Life | None) -> None:
        self.name = name
        self.incarnation = incarnation
        self.cut_off = False
        self.reported: set[int] = set()
        self.told_begun: set[int] = former.told_begun if former else set()
        self.rows: Counter[tuple[int, int]] = Counter()
        """(ticket, row) -> how often it was trained on."""
        self._world = world
        self.units = Units(
            list(range(NUM_ROWS)), unit_size=UNIT_SIZE, batch_size=2, seed=7, collate_fn=list
        )
        if former is not None:
            self.units.load_state_dict(former.units.state_dict())
        claims = self.units.bind(learner=name, incarnation=incarnation)
        assert claims is not None
        self.claims: Claims = claims
        self._batches = iter(self.units)
        world.join(name, incarnation)
        self.exchange()

    def train(self) -> None:
        """One step: the batch, and all that is to be told after it."""
        before = self.units.places()
        batch = next(self._batches)
        after = self.units.places()
        (ticket,) = (t for t, rows in after.items() if rows != before.get(t, 0))
        epoch, unit = self.units.unit_of(ticket)
        assert {row % NUM_UNITS for row in batch} == {unit}, (epoch, unit)
        self.rows.update((ticket, row) for row in batch)
        self.exchange()

    def exchange(self, *, lose_answer: bool = False) -> None:
        if self.cut_off:
            return
        call = self.claims.call()
        reply = self._world.exchange(self.name, self.incarnation, call)
        assert reply is not None
        self.told_begun |= {h.ticket for h in call.held if h.begun}
        self.told_begun |= {r.ticket for r in call.finished}
        self.reported |= {repeat.ticket for repeat in reply.repeated}
        if not lose_answer:
            self.claims.answer(reply)

    def leave(self) -> None:
        self.claims.leave(self.units.places())
        self.exchange()  # may be one that had got no answer
        self.exchange()


class Schedule:
    """Draws what happens next, and remembers what was read."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.lots = random.Random(seed)
        self.lives: dict[str, Life] = {}
        self.past: list[Life] = []
        self.incarnations: Counter[str] = Counter()
        self.former: dict[str, Life] = {}

    def run(self) -> None:
        self.start("a")
        while not self.is_read():
            self.happen()
        for life in self.lives.values():
            life.cut_off = False
            life.exchange()
            life.exchange()
        self.world.commit()

    def is_read(self) -> bool:
        done = self.world.logged.get("train", UnitsDone(plan=""))
        return all(holds(done.finished, t) for t in range(EPOCHS * NUM_UNITS))

    def happen(self) -> None:
        draw = self.lots.random()
        names = sorted(self.lives)
        if not names or (draw < 0.04 and len(names) < 5):
            self.start(self.lots.choice([n for n in "abcde" if n not in self.lives]))
            return
        name = self.lots.choice(names)
        life = self.lives[name]
        if draw < 0.06:
            self.end(name)
        elif draw < 0.08:
            if not life.cut_off:
                life.leave()
            self.end(name)
        elif draw < 0.10:
            self.world.lose(name)  # asleep: to all others it is gone; it may train on later
        elif draw < 0.14:
            life.cut_off = not life.cut_off
        elif draw < 0.18:
            life.exchange(lose_answer=True)
        elif draw < 0.25:
            self.world.commit()
        else:
            life.train()

    def start(self, name: str) -> None:
        self.incarnations[name] += 1
        former = self.former.pop(name, None)
        warm = former if self.lots.random() < 0.7 else None
        self.lives[name] = Life(self.world, name, self.incarnations[name], warm)

    def end(self, name: str) -> None:
        life = self.lives.pop(name)
        self.past.append(life)
        self.former[name] = life
        if self.lots.random() < 0.5:
            self.world.lose(name)

    def readings(self) -> Counter[tuple[int, int]]:
        """How often each row of a ticket was trained on, by anyone Redis could know of.

        What a learner read while it was cut off, and never came back to tell, is nobody's: what it
        learned from it is lost with it.
        """
        rows: Counter[tuple[int, int]] = Counter()
        for life in [*self.past, *self.lives.values()]:
            for (ticket, row), count in life.rows.items():
                if ticket in life.told_begun:
                    rows[ticket, row] += count
        return rows


@pytest.fixture
def world(redis_url: str) -> Iterator[World]:
    with closing(World(redis_url)) as world:
        yield world


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=[pytest.mark.slow] if seed >= 10 else [])
        for seed in range(NUM_SCHEDULES)
    ],
)
def test_every_unit_is_finished_once_an_epoch_or_counted_as_repeated(
    world: World, seed: int
) -> None:
    """The log refuses a second finish; every row was read; what was read twice has its reason."""
    schedule = Schedule(world, seed)
    schedule.run()
    rows = schedule.readings()
    done = world.logged["train"]
    lives = [*schedule.past, *schedule.lives.values()]
    for ticket in range(EPOCHS * NUM_UNITS):
        _, unit = lives[0].units.unit_of(ticket)
        expected = range(unit, NUM_ROWS, NUM_UNITS)
        unread = [row for row in expected if not rows[ticket, row]]
        assert not unread, f"ticket {ticket}: rows {unread} of unit {unit} were never read"
    twice = {ticket for (ticket, _), count in rows.items() if count > 1}
    reported = {ticket for life in lives for ticket in life.reported}
    assert twice <= reported, f"read twice and not counted: {ranges_of(twice - reported)}"
    assert sum(done.repeated.values()) >= len(twice)
