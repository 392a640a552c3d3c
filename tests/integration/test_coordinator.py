"""The coordinator against a real Redis and a real directory: crashes, losses, refusals, ends."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from ddl.coordinator.history import History
from ddl.core.facts import by_time
from ddl.core.log import LogState
from ddl.core.snapshot import snapshot
from ddl.embedded import EmbeddedRedis
from ddl.errors import (
    ConfigError,
    DdlError,
    IntegrityError,
    LeaseLostError,
    ProtocolError,
    RefusedError,
    RunOverError,
    StoreError,
    StoreUnavailableError,
    TaskError,
)
from ddl.journal import Journal
from ddl.learner.session import JoinOptions, find_run
from ddl.protocol.keys import RUNS, ObjectKeys, RegistryKeys, handin_field
from ddl.protocol.records import HandinId, Lease, Request
from ddl.protocol.wire import canonical
from ddl.registry.base import LeaseReply, Poll
from ddl.registry.coordinator import RedisCoordinator
from ddl.registry.reader import RedisReader
from ddl.store.local import LocalStore
from tests.commands import Ddl
from tests.coordinating import (
    EVERY_CODEC,
    RUN,
    Running,
    ScriptedLearner,
    eventually,
    options,
    running,
    write_run,
)
from tests.redis_servers import admin
from tests.stores import CarelessStore, HookedStore, StuckStore

Join = Callable[..., ScriptedLearner]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def toml(tmp_path: Path, redis_url: str) -> Path:
    """A run of six commits."""
    return write_run(tmp_path, redis_url=redis_url, stop={"commits": 6})


@pytest.fixture
def join(redis_url: str, store: LocalStore) -> Iterator[Join]:
    """Makes learners of the run, and closes them."""
    learners = []

    def make(name: str = "a", incarnation: int = 1) -> ScriptedLearner:
        learners.append(ScriptedLearner(redis_url, store, name, incarnation))
        return learners[-1]

    yield make
    for learner in learners:
        learner.close()


def folded(store: LocalStore) -> LogState:
    """The log of the run; folding it checks the whole chain."""
    history = History(store, RUN)
    run = history.run_record()
    assert run is not None
    return history.fold(run)


def weights(log: LogState) -> list[tuple[int, str, str]]:
    """Version and digests of every fragment: equal if and only if the model and momentum are."""
    return [
        (head.version, head.published.sha256, head.outer.sha256 if head.outer else "")
        for head in log.fragments
    ]


def uninterrupted(
    folder: Path, redis_url: str, commits: int = 6, codec: Mapping[str, str] | None = None
) -> list[tuple[int, str, str]]:
    """What the run comes to if nothing goes wrong."""
    folder.mkdir()
    toml = write_run(folder, redis_url=redis_url, stop={"commits": commits}, codec=codec or {})
    store = LocalStore(folder / "store")
    with running(options(toml)) as coordinator:
        learner = ScriptedLearner(redis_url, store)
        learner.contribute(commits)
        learner.close()
        assert coordinator.wait() == "finished"
    with admin(redis_url) as client:
        client.flushall()
    return weights(folded(store))


def test_a_run_is_created_merges_and_ends_at_its_budget(
    toml: Path, store: LocalStore, join: Join, redis_url: str
) -> None:
    """Every contribution gets one receipt in the log; Redis shows the newest record at the end."""
    with running(options(toml)) as coordinator:
        learner = join()
        learner.contribute(6)
        assert coordinator.wait() == "finished"
    log = folded(store)
    assert (log.global_version, log.state) == (6, "stopped")
    assert [row.merged.steps for row in log.ledger] == [12, 12]
    reader = RedisReader(redis_url, RUN)
    view = reader.view()
    reader.close()
    assert view.head is not None
    assert (view.head.seq, view.head.state) == (log.seq, "stopped")
    assert view.lease is None, "the lease is let go"
    assert not view.handins
    assert not view.rounds


def test_who_comes_and_goes_is_told_once_whoever_coordinates(
    toml: Path, join: Join, redis_url: str
) -> None:
    """Also what came about after the last record, under a coordinator or while there was none; with the
    time at which it did."""

    def told() -> list[tuple[str, str]]:
        with closing(RedisReader(redis_url, RUN)) as reader:
            facts = by_time(fact for _, fact in reader.facts(limit=1000))
        told = [(f.name, str(f.fields["learner"])) for f in facts if "learner" in f.fields]
        return [one for one in told if one[0] in ("learner.joined", "learner.left")]

    def await_word(*of: str) -> None:
        eventually(lambda: of in told(), what=f"word of {of}")

    with running(options(toml)):
        join("a").leave()
        await_word("learner.left", "a")
    join("b").leave()
    for witness in "cd":
        with running(options(toml)):
            join(witness)
            await_word("learner.joined", witness)
    assert told() == [
        ("learner.joined", "a"),
        ("learner.left", "a"),
        ("learner.joined", "b"),
        ("learner.left", "b"),
        ("learner.joined", "c"),
        ("learner.joined", "d"),
    ]


def _is_made_by_a_merge(key: str) -> bool:
    """Whether this is not an object of the run's genesis, nor a probe of the store."""
    kinds = ("/fragments/", "/outer/", "/commits/")
    return any(kind in key for kind in kinds) and "/v00000000-" not in key


class Crash(BaseException):
    """Stands for a process that is no more."""


@pytest.mark.promise(2)
@pytest.mark.parametrize(
    "codec", [{"up": "fp32"}, {"up": "int4", "down": "int4-step"}], ids=["in full", "compressed"]
)
@pytest.mark.parametrize("kind", ["fragments", "outer", "commits"])
def test_a_crash_after_any_put_leaves_the_old_version_or_the_new_one(
    kind: str,
    codec: Mapping[str, str],
    tmp_path: Path,
    store: LocalStore,
    join: Join,
    redis_url: str,
) -> None:
    """T23: after a restart the run comes to the very bytes of one that never crashed."""
    expected = uninterrupted(tmp_path / "uninterrupted", redis_url, codec=codec)
    toml = write_run(tmp_path, redis_url=redis_url, stop={"commits": 6}, codec=codec)
    puts = []

    def crash_at_third(key: str) -> None:
        if f"/{kind}/" in key and _is_made_by_a_merge(key):
            puts.append(key)
            if len(puts) == 3:
                raise Crash(key)

    crashing = Running(options(toml), HookedStore(store, after=crash_at_third)).ready()
    learner = join()
    learner.contribute(2)
    third = learner.hand_in(learner.open_round())
    with pytest.raises(Crash):
        crashing.wait()
    assert folded(store).global_version == (3 if kind == "commits" else 2)
    with running(options(toml)) as coordinator:
        assert learner.receipt(third) == "merged"
        learner.contribute(3)
        assert coordinator.wait() == "finished"
    assert weights(folded(store)) == expected


@pytest.mark.promise(2)
def test_a_record_whose_answer_was_lost_is_read_back(
    tmp_path: Path, toml: Path, store: LocalStore, join: Join, redis_url: str
) -> None:
    """Puts that land but seem to fail are done once: the log has neither a gap nor a double."""
    expected = uninterrupted(tmp_path / "uninterrupted", redis_url, commits=3)
    failed = set()

    def lose_each_answer_once(key: str) -> None:
        if _is_made_by_a_merge(key) and key not in failed:
            failed.add(key)
            raise StoreUnavailableError(f"no answer for {key}")

    forgetful = HookedStore(store, after=lose_each_answer_once)
    with running(options(toml, stop__commits="3"), forgetful) as coordinator:
        join().contribute(3)
        assert coordinator.wait() == "finished"
    assert len(failed) == 3 * 3 + 1, "fragment, outer and record of each, and the stop"
    assert weights(folded(store)) == expected


@pytest.mark.promise(5)
@EVERY_CODEC
def test_a_contribution_with_nan_changes_nothing_but_its_receipt(
    codec: Mapping[str, str], tmp_path: Path, store: LocalStore, join: Join, redis_url: str
) -> None:
    """T01: it is refused whole, with tensor and count; the round's bytes are those without it."""
    expected = uninterrupted(tmp_path / "uninterrupted", redis_url, commits=1, codec=codec)
    toml = write_run(tmp_path, redis_url=redis_url, stop={"commits": 6}, codec=codec)
    with running(options(toml, round__deadline_s="1")):
        good, bad = join("good"), join("bad")
        round_ = good.open_round()
        tensor = good.run.layout.by_fragment[round_.fragment][0]
        refused = bad.hand_in(round_, values={tensor.name: float("nan")})
        assert bad.receipt(refused) == "refused"
        count = tensor.numel if codec["up"].startswith("int") else 1  # a scale is of a whole block
        assert bad.reasons[refused.id] == f"tensor {tensor.name!r} holds {count} values not finite"
        assert good.receipt(good.hand_in(round_)) == "merged"
        assert weights(folded(store)) == expected


def _cut(data: bytearray) -> bytes:
    return bytes(data[: int(0.7 * len(data))])


def _flip(data: bytearray) -> bytes:
    data[-3] ^= 1
    return bytes(data)


@pytest.mark.parametrize(
    "tamper",
    [_cut, lambda _: b"", _flip, lambda _: b"<html>error</html>", lambda _: None],
    ids=["cut", "empty", "one byte flipped", "an HTML page", "nothing"],
)
def test_a_damaged_or_missing_payload_is_asked_for_again(
    tamper: Callable[[bytearray], bytes | None],
    tmp_path: Path,
    toml: Path,
    store: LocalStore,
    join: Join,
    redis_url: str,
) -> None:
    """T02: it is found before the merge; put again, it counts as if nothing had been."""
    expected = uninterrupted(tmp_path / "uninterrupted", redis_url, commits=1)
    with running(options(toml)) as coordinator:
        learner = join()
        handin = learner.hand_in(learner.open_round(), tamper=tamper)
        assert learner.receipt(handin) == "merged"
        assert f"{handin.id} is" in coordinator.log.getvalue()
        assert "asked to put it again" in coordinator.log.getvalue()
        assert weights(folded(store)) == expected


def test_redis_is_written_anew_after_it_was_flushed(
    toml: Path, store: LocalStore, join: Join, redis_url: str
) -> None:
    """With a new boot; learners register again, and rounds close again."""
    with running(options(toml)) as coordinator:
        learner = join()
        learner.contribute(2)
        boot = learner.beat().boot
        with admin(redis_url) as client:
            client.flushall()
        eventually(lambda: learner.beat().boot not in ("", boot), what="a new boot")
        learner.contribute(4)
        assert coordinator.wait() == "finished"
    assert folded(store).global_version == 6


def test_rubbish_in_redis_is_told_once_and_overwritten_from_the_log(
    toml: Path, join: Join, redis_url: str
) -> None:
    """In the run's entry, in place of it, and in place of the lease, which then has no end either."""
    keys = RegistryKeys(RUN)
    with running(options(toml)) as coordinator, admin(redis_url) as client:
        log = coordinator.log
        learner = join()
        learner.contribute(1)
        entry = client.hget(keys.run, "entry")
        client.hset(keys.run, "entry", "rubbish")
        eventually(lambda: client.hget(keys.run, "entry") not in (b"rubbish", None))
        assert log.getvalue().count(f"{keys.run} was changed by something else than ddl") == 1
        assert log.getvalue().count("redis.lost") == 1
        restored = client.hget(keys.run, "entry")
        assert isinstance(entry, bytes)
        assert isinstance(restored, bytes)
        assert len(restored) == len(entry)  # all but its boot
        client.set(keys.run, "rubbish")
        eventually(lambda: client.type(keys.run) == b"hash")
        client.set(keys.lease, "rubbish")
        eventually(lambda: client.get(keys.lease) != b"rubbish" and client.pttl(keys.lease) > 0)
        eventually(lambda: "lease.restored" in log.getvalue())
        learner.contribute(5)
        assert coordinator.wait() == "finished"
    assert log.getvalue().count("lease.restored") == 1


def test_a_start_overwrites_an_entry_that_cannot_be_read(
    toml: Path, join: Join, redis_url: str
) -> None:
    """Cut short, or something else in its place: the run is in the store, so its coordinator says so
    once, takes it up and writes an entry that is whole."""
    keys = RegistryKeys(RUN)
    with running(options(toml)):
        learner = join()
        learner.contribute(1)
    with admin(redis_url) as client:
        client.hset(keys.run, "entry", (client.hget(keys.run, "entry") or b"")[:100])
        with running(options(toml)) as coordinator:
            assert coordinator.log.getvalue().count("redis.unreadable") == 1
            assert f"Redis key {keys.run} cannot be read" in coordinator.log.getvalue()
            learner.contribute(2)
        with closing(RedisReader(redis_url, RUN)) as reader:
            assert reader.read_entry() is not None
        client.delete(keys.run)
        client.set(keys.run, "rubbish")
        with running(options(toml)) as coordinator:
            assert coordinator.log.getvalue().count("redis.unreadable") == 1
            assert "holds something else in a key of ddl's" in coordinator.log.getvalue()
            learner.contribute(3)
            assert coordinator.wait() == "finished"


def test_a_run_is_not_created_over_an_entry_that_cannot_be_read(toml: Path, redis_url: str) -> None:
    """It may be that of another run, which lies in another store."""
    keys = RegistryKeys(RUN)
    with admin(redis_url) as client:
        client.hset(keys.run, "entry", "rubbish")
        with pytest.raises(ProtocolError, match=f"Redis key {keys.run} cannot be read"):
            Running(options(toml)).wait()
        assert client.hget(keys.run, "entry") == b"rubbish"


def test_redis_that_failed_over_to_a_copy_that_lagged_is_written_anew(
    toml: Path, store: LocalStore, join: Join, redis_url: str
) -> None:
    """The head there is older than what was shown: versions and receipts are missing too."""
    head = RegistryKeys(RUN).head
    with running(options(toml)) as coordinator, admin(redis_url) as client:
        learner = join()
        learner.contribute(1)
        old = client.get(head)
        learner.contribute(2)
        assert isinstance(old, bytes)
        client.set(head, old)
        eventually(lambda: "redis.lost" in coordinator.log.getvalue(), what="the loss")
        learner.contribute(3)
        assert coordinator.wait() == "finished"


def test_a_run_that_is_removed_under_its_coordinator_stays_removed(
    toml: Path, store: LocalStore, join: Join, redis_url: str, ddl: Ddl
) -> None:
    """`ddl rm --force`: the coordinator says so and ends; neither Redis nor the store has the run again."""
    with running(options(toml)) as coordinator, admin(redis_url) as client:
        join().contribute(1)
        assert ddl("rm", f"{redis_url}?run={RUN}", "--yes", "--force").code == 0
        with pytest.raises(RefusedError, match=f"run '{RUN}' was removed from {store.url}"):
            coordinator.wait()
        assert "redis.lost" not in coordinator.log.getvalue()
        assert "start a coordinator" not in coordinator.log.getvalue()
        assert client.hget(RUNS, RUN) is None
        assert not client.exists(*RegistryKeys(RUN).all())
    assert History(store, RUN).run_record() is None


class ShiftingRedis(RedisCoordinator):
    """A Redis whose clock is set forward, and all instants that it gave with it."""

    shift_s = 0.0

    def poll(self) -> Poll:
        poll = super().poll()
        beats = {learner: at + self.shift_s for learner, at in poll.beats.items()}
        return poll._replace(now=poll.now + self.shift_s, beats=beats)


@pytest.mark.parametrize("shift_s", [3600.0, -3600.0])
def test_a_jump_of_the_servers_clock_takes_nobody_out(
    shift_s: float, toml: Path, join: Join, redis_url: str
) -> None:
    """Open rounds and beats move along: no learner is gone, and the round closes as ever."""
    redis = ShiftingRedis(redis_url, RUN)
    with running(options(toml), registry=redis) as coordinator:
        learner = join()
        learner.contribute(1)
        round_ = learner.open_round()
        redis.shift_s = shift_s
        eventually(lambda: "clock.jumped" in coordinator.log.getvalue(), what="the jump")
        assert learner.receipt(learner.hand_in(round_)) == "merged"
        learner.contribute(4)
        assert coordinator.wait() == "finished"
    text = coordinator.log.getvalue()
    assert text.count("clock.jumped") == 1
    assert "is gone" not in text
    assert "round.extended" not in text


def test_checkpoints_are_written_and_folded_from(
    toml: Path, store: LocalStore, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one every four records, a restart after six needs the last two alone."""
    for module in ("ddl.core.machine", "ddl.coordinator.history"):
        monkeypatch.setattr(f"{module}.CHECKPOINT_EVERY", 4)
    with running(options(toml)) as coordinator:
        join().contribute(6)
        assert coordinator.wait() == "finished"
    whole = folded(store)
    keys = ObjectKeys(RUN)
    assert store.head(keys.checkpoint(4))
    store.put(keys.commit(2), b"not read any more")
    assert folded(store) == whole


def test_the_coordinator_outlives_an_outage_of_redis(
    tmp_path: Path, own_redis: EmbeddedRedis
) -> None:
    """While Redis is away longer than the lease nothing is lost; then all goes on."""
    toml = write_run(tmp_path, redis_url=own_redis.url, stop={"commits": 4})
    store = LocalStore(tmp_path / "store")
    with running(options(toml)) as coordinator:
        learner = ScriptedLearner(own_redis.url, store)
        learner.contribute(2)
        own_redis.stop()
        eventually(lambda: "lease.unsure" in coordinator.log.getvalue(), what="the lease in doubt")
        own_redis.start()
        learner.contribute(2)
        assert coordinator.wait() == "finished"
        learner.close()
    text = coordinator.log.getvalue()
    assert text.index("redis.unreachable") < text.index("redis.reachable")
    assert folded(store).global_version == 4


def test_nothing_is_committed_while_the_store_fails_and_all_is_when_it_works_again(
    toml: Path, store: LocalStore, join: Join
) -> None:
    """Merges and records wait for the store, and are told once."""
    is_broken = False

    def fail(key: str) -> None:
        if is_broken:
            raise StoreUnavailableError(f"cannot write {key}")

    with running(options(toml), HookedStore(store, before=fail)) as coordinator:
        learner = join()
        learner.contribute(1)
        round_ = learner.open_round()
        is_broken = True
        handin = learner.hand_in(round_)
        eventually(lambda: "store_requests.failed" in coordinator.log.getvalue())
        learner.beat()
        assert not learner.receipts.get(handin.id)
        is_broken = False
        assert learner.receipt(handin) == "merged"
    assert "store_requests.recovered" in coordinator.log.getvalue()


def test_with_redis_empty_the_work_of_the_dead_is_found_in_the_store(
    toml: Path, store: LocalStore, join: Join, redis_url: str
) -> None:
    """A whole payload whose announcement Redis has lost is merged once."""
    with running(options(toml)):
        learner = join("dead")
        learner.contribute(2)
        round_ = learner.open_round()
    learner.hand_in(round_)  # with nobody to take it, and then its learner is no more
    with admin(redis_url) as client:
        client.flushall()
    with running(options(toml, round__deadline_s="0.5")):
        join("alive")
        eventually(lambda: folded(store).global_version == 3, what="the merge")
    log = folded(store)
    assert log.account_seq("dead", 1, round_.fragment) == 2


def test_a_second_coordinator_is_refused_and_names_the_first(toml: Path) -> None:
    """T31: whoever lives shows it within a third of its lease."""
    with running(options(toml)) as first:
        second = Running(options(toml))
        with pytest.raises(LeaseLostError, match=r"holds the run: .* process \d+.*--standby"):
            second.wait()
        assert first.error is None


def test_how_long_the_store_takes_is_shown(toml: Path, join: Join, redis_url: str) -> None:
    """With the lease, from the first record or probe on."""
    with running(options(toml)), closing(RedisReader(redis_url, RUN)) as reader:

        def shown() -> float | None:
            view = snapshot(reader.view())
            return view.services["store"].latency_s if view else None

        join().contribute(1)
        eventually(lambda: 0.0 < (shown() or 0.0) < 60.0, what="the time of a record's put")


@pytest.mark.promise(2)
def test_a_coordinator_that_was_replaced_writes_nothing_more(
    toml: Path, store: LocalStore, join: Join, redis_url: str
) -> None:
    """T31: it finds itself fenced, and ends with LeaseLostError."""
    coordinator = Running(options(toml)).ready()
    learner = join()
    learner.contribute(1)
    other = RedisCoordinator(redis_url, RUN)
    wanted = Lease(holder="other", epoch=0, host="elsewhere", pid=1)
    with admin(redis_url) as client:

        def is_taken() -> bool:
            client.delete(RegistryKeys(RUN).lease)  # its holder may renew it before we take it
            return other.take_lease(wanted, ttl_s=60, min_epoch=0).held

        eventually(is_taken)
    other.close()
    with pytest.raises(LeaseLostError):
        coordinator.wait()
    assert folded(store).global_version == 1


def test_a_start_gives_way_to_a_coordinator_on_another_redis(
    toml: Path, store: LocalStore, redis_url: str
) -> None:
    """T31: leases of two servers know nothing of each other; the epochs in the log do."""
    with running(options(toml)):
        pass

    class SlowRedis(RedisCoordinator):
        """While its lease is taken, the other coordinator writes a record."""

        def take_lease(self, lease: Lease, *, ttl_s: float, min_epoch: int) -> LeaseReply:
            record = folded(store).next_record(
                "settings", epoch=9, holder="other", written_at=0.0, ddl_version="0"
            )
            History(store, RUN).write(record)
            return super().take_lease(lease, ttl_s=ttl_s, min_epoch=min_epoch)

    with pytest.raises(LeaseLostError, match="a coordinator with epoch 9"):
        Running(options(toml), registry=SlowRedis(redis_url, RUN)).wait()
    assert folded(store).seq == 1


@pytest.mark.parametrize("epoch", [1, 9])
def test_an_idle_coordinator_notices_one_on_another_redis(
    epoch: int, toml: Path, store: LocalStore
) -> None:
    """T31: it need not write a record to find that another does, be it of the same epoch."""
    with running(options(toml)) as coordinator:
        record = folded(store).next_record(
            "settings", epoch=epoch, holder="other", written_at=0.0, ddl_version="0"
        )
        History(store, RUN).write(record)
        with pytest.raises(LeaseLostError, match=f"other has written record 1 with epoch {epoch}"):
            coordinator.wait()


def test_a_stopped_run_goes_on_with_a_larger_budget(
    toml: Path, store: LocalStore, join: Join
) -> None:
    """T16: the change stands in the log; without one the run says that it is over, and ends."""
    with running(options(toml)) as coordinator:
        learner = join()
        learner.contribute(6)
        coordinator.wait()
    seq = folded(store).seq
    with running(options(toml)) as again:
        assert again.wait() == "finished"
    assert folded(store).seq == seq
    assert "stop.commits = 6 reached" in again.log.getvalue()
    with running(options(toml, stop__commits="8")) as larger:
        learner.contribute(2)
        assert larger.wait() == "finished"
    entry = History(store, RUN).read(seq + 1)
    assert entry is not None
    record = entry.record
    assert (record.kind, record.changes, record.who) == (
        "settings",
        {"stop.commits": 8},
        "coordinator start",
    )
    assert folded(store).global_version == 8


def test_a_start_without_the_flags_of_the_first_one_undoes_them_not(
    tmp_path: Path, store: LocalStore, redis_url: str
) -> None:
    """The run was created with a larger budget than its file says; who takes it up by the file alone
    keeps to that, and says so."""
    toml = write_run(tmp_path, redis_url=redis_url, stop={"commits": 6})
    with running(options(toml, stop__commits="8")):
        pass
    with running(options(toml)) as again:
        assert folded(store).settings.stop.commits == 8
    assert "stop.commits = 8 stands, as it was ordered" in again.log.getvalue()
    assert folded(store).seq == 0


def test_a_request_to_stop_ends_the_run_and_a_start_takes_it_up(
    toml: Path, store: LocalStore, join: Join, redis_url: str
) -> None:
    with running(options(toml)) as coordinator:
        learner = join()
        learner.contribute(1)
        reader = RedisReader(redis_url, RUN)
        reader.request(Request(id="1", kind="stop", who="me", why="enough"))
        assert coordinator.wait() == "finished"
        reader.close()
    entry = History(store, RUN).read(folded(store).seq)
    assert entry is not None
    assert (entry.record.kind, entry.record.who, entry.record.why) == ("stop", "me", "enough")
    with running(options(toml)) as again:
        learner.contribute(5)
        assert again.wait() == "finished"
    assert folded(store).global_version == 6


def test_fixed_settings_cannot_change(toml: Path, tmp_path: Path, redis_url: str) -> None:
    """The refusal names the setting, both values, and where ours came from."""
    with running(options(toml)):
        pass
    with pytest.raises(ConfigError, match=r"codec\.up = 'fp32', but flag says 'int8'"):
        Running(options(toml, codec__up="int8")).wait()


def test_another_model_under_the_same_name_is_refused(toml: Path) -> None:
    """The first tensor that differs is named, with both shapes."""
    with running(options(toml)):
        pass
    sentence = r"'first.weight' is float32 \(3, 4\) in the run and float32 \(3, 5\) in this task"
    with pytest.raises(RefusedError, match=sentence):
        Running(options(toml, task__args="{width = 5}")).wait()


def test_a_name_that_another_store_has_in_this_redis_is_refused(
    toml: Path, tmp_path: Path, redis_url: str
) -> None:
    with running(options(toml)):
        pass
    elsewhere = (tmp_path / "elsewhere").as_uri()
    with pytest.raises(RefusedError, match="is taken in this Redis by another run"):
        Running(options(toml, store__url=elsewhere)).wait()


def test_a_start_that_fails_leaves_nothing(toml: Path, tmp_path: Path, store: LocalStore) -> None:
    """A disk that fills up when the start has taken long enough for its lease to be renewed: no
    object is left, and the lease is free."""
    probe = ObjectKeys(RUN).lease_probe

    def fill_up(key: str) -> None:
        if "fragments/f0001" in key:
            eventually(lambda: store.head(probe))
            raise StoreError("no space left")

    with pytest.raises(StoreError, match="no space left"):
        Running(options(toml), HookedStore(store, before=fill_up)).wait()
    assert not list(store.list(""))
    with running(options(toml)):
        assert list(store.list(f"{RUN}/run.json"))


@pytest.mark.parametrize(
    ("file", "text", "error"),
    [
        ("task.py", None, TaskError),
        ("task.py", "def build(ctx):\n    raise ValueError('broken')\n", TaskError),
        ("task.py", "import ddl\nbuild = lambda ctx: ddl.Task(model='none')\n", TaskError),
        ("init.safetensors", "no weights", ConfigError),
    ],
    ids=["missing", "raises", "no model", "init"],
)
def test_a_start_that_is_refused_has_touched_nothing(
    file: str,
    text: str | None,
    error: type[DdlError],
    toml: Path,
    tmp_path: Path,
    redis_url: str,
) -> None:
    """Files of this machine are tried before the lease is taken: no key, no epoch, no folder."""
    tmp_path.joinpath(file).write_text(text) if text else tmp_path.joinpath(file).unlink()
    start = options(toml)
    if file == "init.safetensors":
        start = dataclasses.replace(start, init=tmp_path / file)
    coordinator = Running(start, LocalStore(tmp_path / "new"))
    with pytest.raises(error, match=file):
        coordinator.wait()
    assert coordinator.log.getvalue() == ""
    assert not (tmp_path / "new").exists()
    with admin(redis_url) as client:
        assert client.keys("*") == []


def test_a_store_that_ignores_create_once_is_refused(toml: Path, store: LocalStore) -> None:
    """The log could not be kept in it."""
    with pytest.raises(StoreError, match="does not create objects once"):
        Running(options(toml), CarelessStore(store)).wait()


def test_who_waits_for_the_store_at_the_start_is_told(
    toml: Path, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a few seconds a line names the store that has not answered, and its endpoint."""
    monkeypatch.setattr("ddl.coordinator.start.HICCUP_S", 0.05)
    stuck = StuckStore(store)
    coordinator = Running(options(toml, store__endpoint_url="http://there:9000"), stuck)
    waited = f"no answer yet from {store.url} at http://there:9000"
    try:
        eventually(lambda: waited in coordinator.log.getvalue())
    finally:
        stuck.may_answer.set()
    coordinator.ready().end()


def test_momentum_that_is_missing_stops_a_restart(
    toml: Path, store: LocalStore, join: Join
) -> None:
    """T04: without its outer state a run would go on, but not as the same run."""
    with running(options(toml)):
        join().contribute(2)
    outer = folded(store).fragments[0].outer
    assert outer is not None
    store.delete([outer.key])
    with pytest.raises(IntegrityError, match=f"{outer.key} is missing"):
        Running(options(toml)).wait()


@pytest.mark.promise(3)
def test_receipts_are_unique(toml: Path, store: LocalStore, join: Join, redis_url: str) -> None:
    """Announced with every beat, twice more, and once more by a Redis that has fallen back to before
    its receipt, a contribution is merged once."""
    with running(options(toml)):
        learner = join()
        handin = learner.hand_in(learner.open_round())
        learner.put_again(handin)
        learner.put_again(handin)
        assert learner.receipt(handin) == "merged"
        learner.contribute(1)
        with admin(redis_url) as client:
            field = handin_field(handin.learner, handin.incarnation, handin.fragment)
            client.hset(RegistryKeys(RUN).handins, field, canonical(handin).decode())
        join("b").contribute(2)  # both are read at once
    history = History(store, RUN)
    seen: list[HandinId] = []
    for seq in range(1, history.newest_seq() + 1):
        entry = history.read(seq)
        assert entry is not None
        seen += [receipt.id for receipt in entry.record.receipts]
    assert len(seen) == len(set(seen)) == 4


def test_a_learner_that_joins_waits_for_redis_to_be_written_anew(
    own_redis: EmbeddedRedis, tmp_path: Path
) -> None:
    """Redis is emptied after it has found the run, and before it enters: it enters as soon as the
    coordinator has written the run again."""
    toml = write_run(tmp_path, redis_url=own_redis.url)
    with running(options(toml)):
        session = find_run(
            JoinOptions(address=f"{own_redis.url}?run={RUN}", learner="a", spool=tmp_path / "s")
        )
    with admin(own_redis.url) as client:
        client.flushall()
    with ThreadPoolExecutor() as pool:
        entering = pool.submit(session.enter)
        with pytest.raises(TimeoutError):
            entering.result(timeout=1.0)
        with running(options(toml)):
            entering.result(timeout=30.0)
            with closing(RedisReader(own_redis.url, RUN)) as reader:
                assert "a" in reader.view().learners
    session.close()


def test_a_learner_that_was_started_before_its_run_waits_for_it(
    toml: Path, tmp_path: Path, redis_url: str
) -> None:
    """Whoever starts both need not put them in order; it is told what is waited for, once."""
    log = io.StringIO()
    join = JoinOptions(
        address=f"{redis_url}?run={RUN}", learner="a", spool=tmp_path / "s", journal=Journal(log)
    )
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(find_run, join)
        eventually(lambda: "run.awaited" in log.getvalue(), what="word of the wait")
        with running(options(toml)):
            session = found.result(30)
            assert session.run.run.name == RUN
            session.close()
    assert log.getvalue().count("run.awaited") == 1


def test_a_learner_waits_while_a_run_that_was_over_is_started_again(
    toml: Path, join: Join, redis_url: str, tmp_path: Path
) -> None:
    """Whoever goes on with a run by one script need not put its processes in order either."""
    with running(options(toml)) as coordinator:
        join().contribute(6)
        assert coordinator.wait() == "finished"
    log = io.StringIO()
    again = JoinOptions(
        address=f"{redis_url}?run={RUN}", learner="b", spool=tmp_path / "s", journal=Journal(log)
    )
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(find_run, again)
        eventually(lambda: "may be started again" in log.getvalue(), what="word of the wait")
        with running(options(toml, stop__commits="8")):
            found.result(30).close()
    assert log.getvalue().count("run.awaited") == 1


def test_nobody_joins_a_run_that_is_over(
    toml: Path, store: LocalStore, join: Join, redis_url: str, tmp_path: Path
) -> None:
    """A life that does nothing would hide what the one before it has done. Who starts its coordinator
    again, and sees it end at once, hears what to do as well."""
    with running(options(toml)) as coordinator:
        join().contribute(6)
        assert coordinator.wait() == "finished"
    assert RunOverError.GO_ON not in coordinator.log.getvalue()
    address = JoinOptions(
        address=f"{redis_url}?run={RUN}", learner="a", spool=tmp_path / "s", wait_s=0.0
    )
    with pytest.raises(
        RunOverError, match=r"is over: stop.commits = 6 reached.*a larger .stop."
    ) as over:
        find_run(address)
    assert "ddl rm" in over.value.hint
    assert not [path for path in (tmp_path / "s").rglob("*") if path.is_file()]
    assert store.head(ObjectKeys(RUN).join("a", 1)) is None, "no life of it has begun"
    with running(options(toml)) as again:
        assert again.wait() == "finished"
    assert RunOverError.GO_ON in again.log.getvalue()


def test_a_learner_whose_run_is_replaced_while_it_joins_is_told_so(
    own_redis: EmbeddedRedis, tmp_path: Path
) -> None:
    """Another run takes the name in Redis before it enters: no other id and no takeover would help."""
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        folder.mkdir()
    one, other = (write_run(folder, redis_url=own_redis.url) for folder in folders)
    with running(options(one)):
        session = find_run(
            JoinOptions(address=f"{own_redis.url}?run={RUN}", learner="a", spool=tmp_path / "s")
        )
    with admin(own_redis.url) as client:
        client.flushall()
    with (
        closing(session),
        running(options(other)),
        pytest.raises(RefusedError, match="belongs to another run") as refused,
    ):
        session.enter()
    assert session.run.run.lineage in str(refused.value)
    assert "--id" not in str(refused.value.hint)
    assert "Join again" in str(refused.value.hint)
