"""Taking a run up again: which differences are refused, and which become a record."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ddl import config
from ddl.config import Scalar, Settings
from ddl.coordinator.genesis import create, draft
from ddl.coordinator.resume import check_entry, check_run, live_changes, standing_orders
from ddl.core.log import START, LogState
from ddl.errors import ConfigError, RefusedError
from ddl.journal import Journal
from ddl.protocol.records import RunEntry, RunRecord
from ddl.protocol.wire import canonical, digest, parse
from ddl.store.local import LocalStore
from tests.coordinating import TASK, write_run

QUIET = Journal(None)


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return write_run(tmp_path, redis_url="redis://host/0")


@pytest.fixture
def run(tmp_path: Path, toml: Path) -> RunRecord:
    """Created with round.quorum = 2 and codec.up = "bf16", both by flags."""
    flags = {"round.quorum": "2", "codec.up": "bf16"}
    settings = config.load(toml, flags=flags).settings
    store = LocalStore(tmp_path / "store")
    drafted = draft(settings, task_file=tmp_path / "task.py", init=None)
    run = create(store, settings, drafted, now=0.0)
    assert run is not None
    return run


def check(run: RunRecord, toml: Path, **flags: str) -> None:
    given = {key.replace("__", "."): value for key, value in flags.items()}
    check_run(run, config.load(toml, flags=given), toml.parent / "task.py", QUIET)


def test_what_is_not_said_stays_as_it_was(run: RunRecord, toml: Path) -> None:
    """A start without the flags of the first one neither fails nor changes anything."""
    check(run, toml)
    assert live_changes(LogState.genesis(run), config.load(toml)) == {}


def test_every_fixed_setting_that_differs_is_named(run: RunRecord, toml: Path) -> None:
    """With both values and where ours came from; all of them at once."""
    with pytest.raises(ConfigError) as error:
        check(run, toml, codec__up="int4", run__seed="9")
    assert "run.seed = 3, but flag says 9" in str(error.value)
    assert "codec.up = 'bf16', but flag says 'int4'" in str(error.value)


def test_what_belongs_to_a_machine_may_differ(run: RunRecord, toml: Path) -> None:
    """The same store by another address, the same Redis by another."""
    check(run, toml, store__url="file:///mnt/elsewhere", redis__url="redis://other/1")


def test_live_settings_that_differ_become_changes(run: RunRecord, toml: Path) -> None:
    """Only those given, and only against what is in force now."""
    loaded = config.load(toml, flags={"round.quorum": "3", "stop.commits": "0"})
    log = LogState.genesis(run)
    assert live_changes(log, loaded) == {"round.quorum": 3}
    change(log, START, {"round.quorum": 3})
    assert live_changes(log, loaded) == {}


def change(
    log: LogState, who: str, changes: dict[str, Scalar], outdone: dict[str, Scalar] | None = None
) -> None:
    """A settings record."""
    record = log.next_record(
        "settings",
        epoch=1,
        holder="c",
        written_at=0.0,
        ddl_version="0",
        who=who,
        changes=changes,
        outdone=outdone or {},
    )
    log.apply(record, digest(canonical(record)))


def test_a_start_undoes_no_order_that_came_after_what_it_says(run: RunRecord, toml: Path) -> None:
    """A coordinator is killed after `ddl set`, and started again with the file as it was: the order
    stands, and is told. A file that has been edited since is meant, and so is one edited twice."""
    log = LogState.genesis(run)
    as_it_was, edited, again = (
        config.load(toml, flags={"round.quorum": quorum}) for quorum in "234"
    )
    change(log, "ann@host", {"round.quorum": 5})
    change(log, "ann@host", {"round.quorum": 6})
    assert live_changes(log, as_it_was) == {}
    assert standing_orders(log, as_it_was) == (
        "round.quorum = 6 stands, as it was ordered (by `ddl set` or --set); round.quorum = 2 is from before that"
    )
    restored = parse(canonical(log), LogState, what="checkpoint")
    assert live_changes(restored, as_it_was) == {}
    assert live_changes(log, edited) == {"round.quorum": 3}
    change(log, START, {"round.quorum": 3})
    assert (live_changes(log, edited), standing_orders(log, edited)) == ({}, "")
    assert live_changes(log, again) == {"round.quorum": 4}
    assert live_changes(log, as_it_was) == {"round.quorum": 2}


@pytest.mark.parametrize("at_genesis", [True, False], ids=["created", "taken up"])
def test_a_start_undoes_no_flag_of_an_earlier_one(
    run: RunRecord, tmp_path: Path, at_genesis: bool
) -> None:
    """A standby without the --set of the coordinator that it replaces: what their file says was outdone
    already, and that is told. A flag of its own is meant, and so is a file that has been edited."""
    toml = write_run(tmp_path, redis_url="redis://host/0", stop={"commits": 6})
    first = config.load(toml, flags={"stop.commits": "9", "redis.url": "redis://:secret@host/0"})
    assert first.outdone == {"stop.commits": 6}
    if at_genesis:
        settings = config.replace(run.settings, {"stop.commits": 9})
        log = LogState.genesis(
            msgspec.structs.replace(run, settings=settings, outdone=first.outdone)
        )
    else:
        log = LogState.genesis(run)
        change(log, START, live_changes(log, first), first.outdone)
    log = parse(canonical(log), LogState, what="checkpoint")
    standby = config.load(toml)
    assert live_changes(log, standby) == {}
    assert standing_orders(log, standby).startswith("stop.commits = 9 stands, as it was ordered")
    assert live_changes(log, config.load(toml, flags={"stop.commits": "6"})) == {"stop.commits": 6}
    change(log, "ann@host", {"stop.commits": 12})
    assert live_changes(log, standby) == live_changes(log, first) == {}
    edited = config.load(write_run(tmp_path, redis_url="redis://host/0", stop={"commits": 7}))
    assert live_changes(log, edited) == {"stop.commits": 7}
    change(log, START, {"stop.commits": 7})
    assert live_changes(log, standby) == {"stop.commits": 6}


def test_orders_that_stand_are_told_together(run: RunRecord, toml: Path) -> None:
    """One start says it once, however many settings there are."""
    log = LogState.genesis(run)
    loaded = config.load(toml, flags={"round.quorum": "2", "round.deadline_s": "60"})
    change(log, START, {"round.deadline_s": 60.0})
    change(log, "ann@host", {"round.quorum": 5})
    change(log, "bob@host", {"round.deadline_s": 90.0})
    assert standing_orders(log, loaded) == (
        "round.quorum = 5, round.deadline_s = 90.0 stand, as they were ordered (by `ddl set` or --set); "
        "round.quorum = 2, round.deadline_s = 60.0 are from before that"
    )


def test_another_task_file_of_the_same_model_is_only_told(run: RunRecord, toml: Path) -> None:
    """Unless the run says task.digest = "refuse"."""
    (toml.parent / "task.py").write_text(TASK + "\n# a comment\n")
    check(run, toml)
    strict = config.replace(run.settings, {"task.digest": "refuse"})
    with pytest.raises(RefusedError, match="is not the file that run 'tiny' was created with"):
        check(_with(run, strict), toml)


def _with(run: RunRecord, settings: Settings) -> RunRecord:
    return msgspec.structs.replace(run, settings=settings)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("width, 3)", "width, 5)"), r"'first.weight' is float32 (3, 4)"),
        (('"seen"', '"heard"'), "it has no tensor 'heard'"),
        (("bias=False)", "bias=True)"), "it has no tensor 'second.bias'"),
        (("int64))", "int64), persistent=False)"), "it has the tensor 'seen'"),
        (("self.second\n", "torch.nn.Linear(3, 1)\n"), "it has no tensor 'tied.bias'"),
    ],
    ids=["a shape", "a name", "one more", "one less", "not tied"],
)
def test_another_model_is_refused_by_its_first_difference(
    run: RunRecord, toml: Path, change: tuple[str, str], sentence: str
) -> None:
    """Whatever differs, a tensor is named."""
    text = TASK.replace(*change)
    assert text != TASK
    (toml.parent / "task.py").write_text(text)
    with pytest.raises(RefusedError) as error:
        check(run, toml)
    assert sentence in str(error.value)


def entry(run: RunRecord, store_url: str) -> RunEntry:
    return RunEntry(run=run, store_url=store_url, boot="b", settings=run.settings)


def test_a_name_belongs_to_one_run_in_a_redis(run: RunRecord) -> None:
    """Another store is another run, unless the same record 0 lies in it."""
    check_entry(None, None, "file:///a")
    check_entry(entry(run, "file:///b"), run, "file:///a")
    with pytest.raises(RefusedError, match="taken in this Redis by another run"):
        check_entry(entry(run, "file:///b"), None, "file:///a")


def test_a_run_whose_store_was_emptied_gives_its_name_free(run: RunRecord) -> None:
    """The store is the truth; what Redis still says of it is old."""
    check_entry(entry(run, "file:///a"), None, "file:///a")
