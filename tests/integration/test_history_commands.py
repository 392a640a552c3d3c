"""What is done with a run that was: verify, evaluate, runs, fork, rm; on a real run's remains."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from safetensors.torch import load_file

from ddl.coordinator.history import History
from ddl.coordinator.remove import find_remains, remove_objects
from ddl.coordinator.verify import ReplayResult, verify_run
from ddl.embedded import EmbeddedRedis
from ddl.errors import RefusedError, StoreUnavailableError
from ddl.learner.spool import Spool, run_folder
from ddl.protocol.keys import ObjectKeys, RegistryKeys
from ddl.protocol.records import LogRecord
from ddl.protocol.wire import canonical, parse
from ddl.registry.reader import RedisReader
from ddl.store.local import LocalStore
from ddl.store.open_url import open_url
from ddl_cli.commands.verify import text as verification_text
from tests.commands import Ddl
from tests.coordinating import RUN, TASK, ScriptedLearner, options, running, write_run
from tests.redis_servers import admin
from tests.servers import S3Server
from tests.stores import HookedStore

KEYS = ObjectKeys(RUN)
COMMITS = 6

MEASURED_TASK = TASK.replace(
    "return Task(model=",
    """return Task(evaluate=lambda model: {
        "sum": sum(p.double().sum() for p in model.parameters()), "seen": model.seen,
        "drawn": torch.rand(()),
    }, model=""",
)


class Past(NamedTuple):
    """A run that has stopped: two learners, six merges of two contributions, one refusal."""

    folder: Path
    redis_url: str

    @property
    def address(self) -> str:
        return f"{self.redis_url}?run={RUN}"


def refused_once(learner: ScriptedLearner) -> None:
    """Hand in a NaN; the round it was for stays open."""
    round_ = learner.open_round()
    specs = learner.run.layout.by_fragment[round_.fragment]
    name = next(spec.name for spec in specs if spec.kind == "parameter")
    assert learner.receipt(learner.hand_in(round_, values={name: float("nan")})) == "refused"
    learner.launches[round_.fragment] = -1


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Past]:
    """Made once; tests leave it as it is."""
    folder = tmp_path_factory.mktemp("past")
    with EmbeddedRedis(folder / "redis", persist=False) as server:
        toml = write_run(
            folder,
            redis_url=server.url,
            round={"quorum": 2},
            stop={"commits": COMMITS},
            keep={"contributions": "all"},
        )
        (folder / "task.py").write_text(MEASURED_TASK)
        with running(options(toml)) as coordinator:
            store = LocalStore(folder / "store")
            learners = [ScriptedLearner(server.url, store, name) for name in "ab"]
            refused_once(learners[0])
            for _ in range(COMMITS):
                handins = [learner.hand_in(learner.open_round()) for learner in learners]
                for learner, handin in zip(learners, handins, strict=True):
                    assert learner.receipt(handin) == "merged"
            coordinator.wait()
        for learner in learners:
            learner.leave()
            learner.close()
        yield Past(folder, server.url)


@pytest.fixture
def store(past: Past, tmp_path: Path) -> LocalStore:
    """A copy of the run's store, to damage."""
    shutil.copytree(past.folder / "store", tmp_path / "store")
    return LocalStore(tmp_path / "store")


def flip(store: LocalStore, key: str, at: int = -1) -> None:
    """Change one byte of an object."""
    data = store.get(key)
    data[at] ^= 1
    store.put(key, data)


def first_key(store: LocalStore, prefix: str) -> str:
    return next(info.key for info in store.list(prefix))


def wrong(store: LocalStore, *, replay: bool = False) -> list[tuple[str, str]]:
    """The differences that are found."""
    found = verify_run(store, RUN, replay=replay)
    assert found.num_differences == len(found.differences)
    return [(row.where, row.what) for row in found.differences]


# ---- verify -------------------------------------------------------------------------------------


def test_a_whole_run_verifies_and_replays(past: Past, ddl: Ddl) -> None:
    """Every record, object and merge is looked at; the numbers are those of the run."""
    told = ddl("verify", past.address, "--replay", "--json")
    found = json.loads(told.out)
    assert (told.code, found["num_differences"]) == (0, 0), told
    assert found["global_version"] == COMMITS
    assert found["num_records"] > COMMITS  # a refusal and the stop have records too
    assert found["num_receipts"] == 2 * COMMITS + 1
    # version 0 of two fragments, what is not trained, and two objects for every step
    assert (found["num_objects"], found["num_gone"]) == (3 + 2 * COMMITS, 0)
    assert found["num_contributions"] == 2 * COMMITS
    assert found["contributions_bytes"] > 0
    assert found["replay"] == {
        "num_steps": COMMITS,
        "num_equal": COMMITS,
        "num_skipped": 0,
        "num_not_kept": 0,
        "skipped": [],
    }
    text = ddl("verify", (past.folder / "store" / RUN).as_uri())
    fates = found["ledger"]
    assert fates["merged"] > 0 < fates["refused"]
    assert (
        f"  ledger       {fates['handed_in']:,.0f} tokens have a receipt: {fates['merged']:,.0f} merged, "
        f"{fates['refused']:,.0f} refused\n" in text.out
    )
    assert (text.code, text.out.splitlines()[-1]) == (0, "everything is as the log says")
    replayed = ddl("verify", past.address, "--replay").out.splitlines()[-1]
    assert replayed == (
        f"everything is as the log says, and all {COMMITS} merges give the same bytes again"
    )


def test_verify_does_not_claim_merges_that_it_could_not_do_again(store: LocalStore) -> None:
    """With the default [keep] the contributions to almost all of them are gone."""
    replay = ReplayResult(num_steps=592, num_equal=1, num_skipped=591, num_not_kept=591, skipped=())
    found = msgspec.structs.replace(verify_run(store, RUN), replay=replay)
    assert verification_text(found).splitlines()[-1] == (
        "everything is as the log says; no more than 1 of 592 merges could be done again "
        '(keep.contributions = "all" keeps what it takes)'
    )


def test_status_and_verify_tell_one_ledger(tmp_path: Path, redis_url: str, ddl: Ddl) -> None:
    """What waits for a receipt does not stand in the log: it is the difference, and told as such."""
    toml = write_run(tmp_path, redis_url=redis_url, round={"quorum": 2})
    store, address = LocalStore(tmp_path / "store"), f"{redis_url}?run={RUN}"
    with running(options(toml)), contextlib.ExitStack() as stack:
        pair = [ScriptedLearner(redis_url, store, name) for name in "ab"]
        for learner in pair:
            stack.callback(learner.close)
        handins = [learner.hand_in(learner.open_round()) for learner in pair]
        for learner, handin in zip(pair, handins, strict=True):
            assert learner.receipt(handin) == "merged"
        pair[0].hand_in(pair[0].open_round())
        pair[0].beat()
        status = json.loads(ddl("status", address, "--once", "--json").out)["ledger"]
        audited = json.loads(ddl("verify", address, "--json").out)["ledger"]
        told = ddl("verify", address).out
    assert status["outstanding"] > 0 < status["merged"] == audited["merged"]
    assert status["handed_in"] - status["outstanding"] == pytest.approx(audited["handed_in"])
    waiting = f"{status['outstanding']:,.0f} more have none yet"
    assert f"; {waiting} (`ddl status` calls them outstanding)" in told


def test_a_flipped_byte_is_found_in_every_object(store: LocalStore) -> None:
    """In whatever the log names or was merged, and in the log itself; the place is named."""
    elsewhere = {  # each has a test of its own
        KEYS.run_record,
        KEYS.commit(History(store, RUN).newest_seq()),
        first_key(store, f"{KEYS.contributions}a/000001/f0000-00000001-"),  # refused
    }
    everything = {info.key for info in store.list(KEYS.prefix)} - elsewhere
    assert len(everything) > 3 * COMMITS
    for key in sorted(everything):
        whole = bytes(store.get(key))
        flip(store, key, at=len(whole) // 2)
        found = {where for where, _ in wrong(store, replay=True)}
        follower = KEYS.commit((KEYS.parse_seq(key) or 0) + 1)
        assert found & {key, follower}, key
        store.put(key, whole)
    assert wrong(store, replay=True) == []


def test_a_merged_contribution_that_was_changed_is_found_without_a_replay(
    store: LocalStore, ddl: Ddl
) -> None:
    """It is told once, with a replay too; merges that stand on a version which `[keep]` let go, and which
    cannot be made again now, are told as what they are."""
    history = History(store, RUN)
    run = history.existing_run()
    merges = [e.record for e in map(history.read, range(1, history.newest_seq())) if e]
    steps = [r for r in merges if r.kind == "step" and r.fragments[0].fragment == 0]
    damaged, gone = steps[1], steps[1].fragments[0]
    id_ = next(r.id for r in damaged.receipts if r.fate == "merged")
    (key,) = [
        info.key
        for info in store.list(KEYS.contributions)
        if KEYS.parse_contribution(info.key) == tuple(id_)
    ]
    flip(store, key, at=len(store.get(key)) // 2)
    assert wrong(store) == [(key, "its bytes are not those that its name tells")]
    assert wrong(store, replay=True) == wrong(store)
    store.delete([ref.key for ref in (gone.published, gone.outer, gone.step) if ref is not None])
    found = verify_run(store, RUN, replay=True)
    assert found.replay is not None
    assert [row.why for row in found.replay.skipped] == [
        f"version {steps[2].global_version - 1} is not kept, and record {damaged.seq} could not be merged again"
    ]
    assert found.replay.num_not_kept == 0
    assert run.layout.num_fragments == 2


def test_another_run_record_is_found(store: LocalStore) -> None:
    """The chain begins with the digest of `run.json`."""
    data = bytes(store.get(KEYS.run_record))
    store.put(KEYS.run_record, data.replace(b'"lr":0.6', b'"lr":0.7'))
    ((where, what), _) = wrong(store)
    assert where == KEYS.commit(1)
    assert "prev_digest" in what


def test_redis_bears_witness_to_the_last_record(past: Past, store: LocalStore, ddl: Ddl) -> None:
    """No record follows it, so only what Redis knows can tell that it was changed."""
    newest = History(store, RUN).newest_seq()
    data = bytes(store.get(KEYS.commit(newest)))
    record = parse(data, LogRecord, what="the newest record")
    store.put(KEYS.commit(newest), canonical(msgspec.structs.replace(record, why="another reason")))
    assert wrong(store) == []
    told = ddl("verify", past.address, "--store", store.url)
    assert told.code == 6
    assert f"WRONG  {KEYS.commit(newest)}" in told.out
    assert "1 difference" in told.out


def test_a_gap_in_the_log_is_found(store: LocalStore, ddl: Ddl) -> None:
    """The first missing record is named; what is before it is checked all the same."""
    store.delete([KEYS.commit(3)])
    told = ddl("verify", f"{store.url}/{RUN}", "--json")
    assert told.code == 6
    found = json.loads(told.out)
    assert found["num_records"] == 2
    assert [row["where"] for row in found["differences"]] == [KEYS.commit(3)] * 2
    assert "it is missing" in found["differences"][0]["what"]


def test_a_receipt_that_is_there_twice_is_found(store: LocalStore) -> None:
    """Even if the chain was mended around it, and the ledger with it."""
    history = History(store, RUN)
    newest = history.newest_seq()
    entry = history.read(newest)
    merged = next(
        e.record for e in map(history.read, range(1, newest)) if e and e.record.kind == "step"
    )
    assert entry is not None
    log = history.fold_to(history.existing_run(), COMMITS)
    history.follow(log)
    again = log.next_record(
        "receipts",
        epoch=log.epoch,
        holder="x",
        written_at=0.0,
        ddl_version="0",
        receipts=merged.receipts,
    )
    store.put(KEYS.commit(newest + 1), canonical(again), mode="create")
    ((where, what),) = wrong(store)
    assert where == KEYS.commit(newest + 1)
    assert "receipt seq" in what


def test_checkpoints_are_compared_with_the_records(store: LocalStore) -> None:
    """One that tells anything else than its records is found; so is one of no record."""
    history = History(store, RUN)
    log = history.fold_to(history.existing_run(), 2)
    history.write_checkpoint(log.seq, canonical(log))
    assert verify_run(store, RUN).num_checkpoints == 1
    assert wrong(store) == []
    log.progress += 1.0
    history.write_checkpoint(log.seq, canonical(log))
    history.write_checkpoint(256, canonical(log))
    assert [where for where, _ in wrong(store)] == [
        KEYS.checkpoint(log.seq),
        KEYS.checkpoint(256),
    ]


def test_what_is_not_kept_may_be_gone(store: LocalStore) -> None:
    """`keep.versions = 3, every = 50`: version 0 is promised, versions 1 and 2 are not."""
    history = History(store, RUN)
    run = history.existing_run()
    one, newest = history.fold_to(run, 1), history.fold(run)
    fragment = next(p for p, head in enumerate(one.fragments) if head.version == 1)
    store.delete([one.fragments[fragment].published.key])
    found = verify_run(store, RUN)
    assert (found.num_differences, found.num_gone) == (0, 1)
    needed = [run.fragments[0].key, newest.fragments[0].published.key]
    store.delete(needed)
    assert wrong(store) == [(key, "it is missing") for key in needed]


@pytest.mark.parametrize("command", ["export", "evaluate", "fork"])
def test_a_version_that_is_not_kept_is_no_damage(
    past: Past, store: LocalStore, tmp_path: Path, ddl: Ddl, command: str
) -> None:
    """It is refused by the rule, with the kept versions next to it; one that is kept and missing is
    lost."""
    given = {
        "export": ["--out", str(tmp_path / "out")],
        "evaluate": ["--task", str(past.folder / "task.py")],
        "fork": ["--as", "young"],
    }[command]
    history = History(store, RUN)
    run = history.existing_run()
    two = history.fold_to(run, 2)
    fragment = next(p for p, head in enumerate(two.fragments) if head.version)
    store.delete([two.fragments[fragment].published.key])
    told = ddl(command, f"{store.url}/{RUN}", "--at", "2", *given)
    assert told.code == 4, told
    assert "version 2 is not kept: keep.versions = 3 and keep.every = 50" in told.err
    assert "The nearest that are kept: 0 and 4" in told.err
    store.delete([history.fold(run).fragments[fragment].published.key])
    told = ddl(command, f"{store.url}/{RUN}", *given)
    assert (told.code, "is missing in the store" in told.err) == (6, True), told


def test_replay_says_what_it_cannot_do(store: LocalStore, ddl: Ddl) -> None:
    """A version that may be gone is made again from the one before; where a contribution to it is
    missing, that is a difference, since all are to be kept, and the step from it cannot be replayed for
    that reason, not because `[keep]` let anything go."""
    history = History(store, RUN)
    one = history.fold_to(history.existing_run(), 1)
    fragment = next(p for p, head in enumerate(one.fragments) if head.version == 1)
    store.delete([one.fragments[fragment].published.key])
    replay = verify_run(store, RUN, replay=True).replay
    assert replay is not None
    assert (replay.num_equal, replay.num_skipped) == (COMMITS, 0)
    store.delete([first_key(store, f"{KEYS.contributions}b/000001/f{fragment:04d}")])
    found = verify_run(store, RUN, replay=True)
    ((where, what),) = [(row.where, row.what) for row in found.differences]
    assert where.startswith(KEYS.commits)
    assert "is not kept, but all are kept" in what
    assert found.replay is not None
    (skipped,) = found.replay.skipped
    assert re.fullmatch(
        r"version \d is not kept, and record \d could not be merged again", skipped.why
    )
    assert found.replay.num_not_kept == 0
    told = ddl("verify", f"{store.url}/{RUN}", "--replay").out
    assert (
        "    record 4 not replayed: version 2 is not kept, and record 2 could not be merged" in told
    )
    assert told.endswith("1 difference\n")
    assert "see keep.versions" not in told


# ---- evaluate -----------------------------------------------------------------------------------


def test_evaluate_measures_versions(past: Past, ddl: Ddl) -> None:
    """Any version, several in one go, with the numbers of an export; drawn samples are the same."""
    toml = str(past.folder / "run.toml")
    told = ddl("evaluate", toml, "--at", "0", "--at", str(COMMITS), "--json")
    assert told.code == 0, told
    first, last = json.loads(told.out)["versions"]
    assert (first["global_version"], last["global_version"]) == (0, COMMITS)
    assert first["measures"]["sum"] != last["measures"]["sum"]
    assert first["measures"]["drawn"] == last["measures"]["drawn"]
    assert last["measures"]["seen"] > first["measures"]["seen"] == 0
    exported = ddl("export", past.address, "--out", str(past.folder / "export"))
    weights = load_file(exported.out.strip())
    total = sum(float(w.double().sum()) for name, w in weights.items() if name != "seen")
    assert last["measures"]["sum"] == pytest.approx(total, rel=1e-12)
    newest = ddl("evaluate", past.address, "--task", str(past.folder / "task.py"))
    assert newest.out.startswith(f"version {COMMITS}  sum ")


def test_evaluate_wants_the_runs_task(past: Past, ddl: Ddl, tmp_path: Path) -> None:
    """No file, a file without `evaluate`, another model, another version: each is told."""
    assert ddl("evaluate", past.address).code == 2
    plain = tmp_path / "plain.py"
    plain.write_text(TASK)
    told = ddl("evaluate", past.address, "--task", str(plain))
    assert (told.code, "has no `evaluate`" in told.err) == (2, True)
    task = str(past.folder / "task.py")
    told = ddl("evaluate", past.address, "--task", task, "--arg", "width=5")
    assert (told.code, "does not hold the task's model" in told.err) == (4, True)
    told = ddl("evaluate", past.address, "--task", task, "--at", "99")
    assert (told.code, "Its versions are 0 to 6" in told.err) == (2, True)


# ---- runs ---------------------------------------------------------------------------------------


def test_a_report_from_redis_or_from_the_store_alone(past: Past, ddl: Ddl, tmp_path: Path) -> None:
    """One page, that names the learners and what they were refused; of a run that is not there, none."""
    for number, where in enumerate((past.address, (past.folder / "store" / RUN).as_uri())):
        out = tmp_path / str(number)
        told = ddl("report", where, "--out", str(out), "--json")
        assert told.code == 0, told
        page = str(out / "index.html")
        assert json.loads(told.out) == {"schema": 1, "page": page, "versions": COMMITS}
        page = (out / "index.html").read_text()
        assert "not finite" in page
        assert page.count("<svg") >= 5
    missing = ddl(
        "report", (past.folder / "store" / "other").as_uri(), "--out", str(tmp_path / "x")
    )
    assert missing.code == 2
    assert not (tmp_path / "x").exists()
    assert ddl("report", past.address, "--out", "/proc/page").code == 2


def test_runs_at_a_redis_and_in_a_store(past: Past, ddl: Ddl) -> None:
    """Both know the run's version; only Redis knows whether anybody works on it."""
    at_redis = json.loads(ddl("runs", "--redis", past.redis_url, "--json").out)
    in_store = json.loads(ddl("runs", "--store", (past.folder / "store").as_uri(), "--json").out)
    for found, present in ((at_redis, ("", 0)), (in_store, (None, None))):
        (row,) = found["runs"]
        told = (row["name"], row["state"], row["global_version"])
        assert told == (RUN, "stopped", COMMITS)
        assert (row["coordinator"], row["num_learners"]) == present
        assert row["store"] == (past.folder / "store").as_uri()
    table = ddl("runs", "--redis", past.redis_url)
    assert RUN in table.out
    assert ddl("runs").code == 2


def test_nobody_can_steer_a_run_that_is_over(past: Past, ddl: Ddl) -> None:
    """It is said why it is over: to start its coordinator as it is would change nothing."""
    for command in ("pause", "rollback --to 3", "set round.quorum=1"):
        name, *rest = command.split()
        told = ddl(name, f"{past.redis_url}?run={RUN}", *rest)
        assert (told.code, f"{RUN!r} is over, stop.commits = " in told.err) == (4, True), told
        assert "a larger [stop]" in told.err


# ---- fork ---------------------------------------------------------------------------------------


def test_a_fork_begins_with_the_weights_of_its_version(
    past: Past, store: LocalStore, ddl: Ddl, tmp_path: Path
) -> None:
    """Same model, a lineage and settings of its own; the old run stays as it was."""
    before = {info.key: bytes(store.get(info.key)) for info in store.list("")}
    where = f"{store.url}/{RUN}"
    told = ddl("fork", where, "--at", "3", "--as", "young", "--set", "outer.lr=0.25", "--json")
    assert told.code == 0, told
    assert json.loads(told.out)["source_version"] == 3
    changed = json.loads(told.out)["changes"]
    assert (changed["outer.lr"], "run.name" in changed) == (0.25, False)
    assert {key: bytes(store.get(key)) for key in before} == before
    old, young = History(store, RUN).existing_run(), History(store, "young").existing_run()
    assert young.lineage == json.loads(told.out)["lineage"] != old.lineage
    assert (young.layout, young.task_digest) == (old.layout, old.task_digest)
    assert (young.settings.outer.lr, young.settings.run.name) == (0.25, "young")
    assert young.settings.keep == old.settings.keep
    listed = json.loads(ddl("runs", "--store", store.url, "--json").out)["runs"]
    states = {row["name"]: row["state"] for row in listed}
    assert states == {RUN: "stopped", "young": "not started"}
    exports = [
        ddl("export", f"{store.url}/{name}", "--at", at, "--out", str(tmp_path / name)).out.strip()
        for name, at in ((RUN, "3"), ("young", "0"))
    ]
    one, other = map(load_file, exports)
    assert one.keys() == other.keys()
    assert all(one[name].equal(other[name]) for name in one)
    assert verify_run(store, "young").num_differences == 0


def test_a_fork_is_a_run_like_any_other(past: Past, store: LocalStore, tmp_path: Path) -> None:
    """A coordinator takes it up, learners join it, and its log can be replayed."""
    from ddl.coordinator.fork import fork_run

    shutil.move(tmp_path / "store", tmp_path / "forks")
    store = LocalStore(tmp_path / "forks")
    fork_run(store, RUN, "young", at=4, changes={"stop.commits": 2, "round.quorum": 1}, now=1.0)
    url = past.redis_url.rpartition("/")[0] + "/1"
    toml = write_run(
        tmp_path,
        redis_url=url,
        run={"name": "young"},
        store={"url": store.url},
        stop={"commits": 2},
    )
    (tmp_path / "task.py").write_text(MEASURED_TASK)
    with running(options(toml), store) as coordinator:
        learner = ScriptedLearner(url, store, "c", run="young")
        learner.contribute(2)
        coordinator.wait()
        learner.close()
    found = verify_run(store, "young", replay=True)
    assert (found.num_differences, found.global_version) == (0, 2)
    assert found.replay is not None
    assert found.replay.num_equal == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--as", RUN), "already"),
        (("--as", "Not Good"), "not usable"),
        (("--as", "new", "--at", "99"), "Its versions are 0 to 6"),
        (("--as", "new", "--set", "fragments.num=3"), "keeps the layout"),
        (("--as", "new", "--set", "store.url=file:///tmp"), "the store of its run"),
        (("--as", "new", "--set", "outer.lr=-1"), "outer.lr"),
    ],
)
def test_a_fork_that_cannot_be_is_refused(
    past: Past, ddl: Ddl, arguments: tuple[str, ...], told: str
) -> None:
    """Before anything is written."""
    outcome = ddl("fork", (past.folder / "store" / RUN).as_uri(), *arguments)
    assert (outcome.code, told in outcome.err) == (2, True), outcome
    assert "new" not in LocalStore(past.folder / "store").folders()


# ---- rm -----------------------------------------------------------------------------------------


@pytest.fixture
def doomed(redis_url: str, tmp_path: Path) -> Iterator[tuple[str, LocalStore, ScriptedLearner]]:
    """A run with one version and a living learner; its coordinator has just stopped it."""
    toml = write_run(tmp_path, redis_url=redis_url, stop={"commits": 1})
    with running(options(toml)) as coordinator:
        store = LocalStore(tmp_path / "store")
        learner = ScriptedLearner(redis_url, store)
        learner.contribute(1)
        coordinator.wait()
    yield f"{redis_url}?run={RUN}", store, learner
    learner.close()


def test_rm_deletes_a_run_that_is_at_rest(
    doomed: tuple[str, LocalStore, ScriptedLearner],
    redis_url: str,
    ddl: Ddl,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Refused while a learner lives; asked for; then nothing is left, in store and Redis."""
    address, store, learner = doomed
    told = ddl("rm", address, "--yes")
    assert (told.code, "learner a" in told.err) == (4, True), told
    learner.leave()
    for answer in ("", "n\n"):  # nobody is there to answer; no
        monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        told = ddl("rm", address)
        assert (told.code, "`--yes` deletes it unasked" in told.err) == (4, True), told
        assert History(store, RUN).run_record() is not None
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    told = ddl("rm", address)
    assert told.code == 0, told
    assert list(store.list("")) == []
    with admin(redis_url) as client:
        assert client.keys("*") == []
    told = ddl("rm", address, "--yes")
    assert (told.code, f"nothing of a run '{RUN}' in Redis at {redis_url}" in told.err) == (2, True)
    told = ddl("rm", f"{store.url}/{RUN}", "--redis", redis_url, "--yes")
    assert (told.code, f"{store.url} and in Redis at" in told.err) == (2, True)


@pytest.mark.parametrize("where", ["redis", "store"])
def test_rm_removes_what_is_left_over_in_redis_alone(
    where: str, tmp_path: Path, redis_url: str, ddl: Ddl
) -> None:
    """Keys of what never became a run, or whose store was deleted by hand, whichever is named."""
    with admin(redis_url) as client:
        client.set(RegistryKeys(RUN).epoch, 3)
    named = {"redis": f"{redis_url}?run={RUN}", "store": f"{(tmp_path / 'store').as_uri()}/{RUN}"}
    told = ddl("rm", named[where], "--redis", redis_url, "--yes")
    assert (told.code, "1 key in Redis at" in told.out) == (0, True), told
    with admin(redis_url) as client:
        assert client.keys("*") == []
    assert not (tmp_path / "store").exists()


def test_rm_removes_the_spools_of_this_machine(
    store: LocalStore, ddl: Ddl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of this very run, with what its learners keep of their own; unless one is alive and uses
    them, which is said."""
    root = tmp_path / "spool"
    monkeypatch.setenv("DDL_SPOOL", str(root))
    lineage = History(store, RUN).existing_run().lineage
    living = Spool(root, run=RUN, lineage=lineage, learner="a")
    living.warm_file.write_bytes(b"optimizer")
    Spool(root, run=RUN, lineage="0" * 32, learner="a").close()
    folder = run_folder(root, run=RUN, lineage=lineage)
    rm = ("rm", f"{store.url}/{RUN}", "--yes", "--force")
    record = bytes(store.get(KEYS.run_record))

    told = ddl(*rm)
    assert told.code == 0
    assert f"9B in {folder} on this machine" in told.out
    assert f"{folder} stays: a process of a is alive and uses it" in told.err
    assert living.warm_file.exists()

    living.close()
    store.put(KEYS.run_record, record)
    told = ddl(*rm)
    assert (told.code, "stays" in told.err) == (0, False)
    assert [path.name for path in root.iterdir()] == [f"{RUN}-00000000"]


def test_rm_leaves_a_run_that_has_only_the_name_in_common(
    past: Past, store: LocalStore, ddl: Ddl
) -> None:
    """A fork under the old name in another store: Redis knows the old run, and keeps it."""
    data = bytes(store.get(KEYS.run_record))
    lineage = History(store, RUN).existing_run().lineage.encode()
    store.put(KEYS.run_record, data.replace(lineage, b"0" * 32))
    where = (f"{store.url}/{RUN}", "--redis", past.redis_url, "--yes")
    told = ddl("rm", *where)
    assert (told.code, "nobody can tell" in told.err) == (4, True), told
    assert ddl("rm", *where, "--force").code == 0
    assert list(store.list(KEYS.prefix)) == []
    registry = RedisReader(past.redis_url, RUN)
    try:
        assert registry.read_entry() is not None
    finally:
        registry.close()


class BrokenStore(HookedStore):
    """Goes away before anything is deleted."""

    def delete(self, keys: Iterable[str]) -> None:
        raise StoreUnavailableError(f"the store went away before {keys} were deleted")


def test_rm_that_is_interrupted_leaves_no_run(store: LocalStore, ddl: Ddl) -> None:
    """Wherever it ends: what is left is no run for anybody, holds the name, and can be finished."""
    remains = find_remains(store, RUN)
    broken = BrokenStore(store)
    with pytest.raises(StoreUnavailableError):
        remove_objects(broken, RUN, remains, who="tester", now=1.0)
    store.delete([KEYS.commit(1), KEYS.commit(2)])  # and some of it was done
    with pytest.raises(RefusedError, match="being removed, by tester"):
        History(store, RUN).run_record()
    for command in ("verify", "export --out x", "evaluate --task x", "fork --as y"):
        assert ddl(command.split()[0], f"{store.url}/{RUN}", *command.split()[1:]).code == 4
    (row,) = json.loads(ddl("runs", "--store", store.url, "--json").out)["runs"]
    assert "being removed" in row["problem"]
    assert find_remains(store, RUN).lineage == remains.lineage != ""
    assert ddl("rm", f"{store.url}/{RUN}", "--yes", "--force").code == 0
    assert list(store.list(KEYS.prefix)) == []


class LivelyStore(HookedStore):
    """While the first objects are deleted, a process that does not know of it yet puts another."""

    is_told = False

    def delete(self, keys: Iterable[str]) -> None:
        super().delete(keys)
        if not self.is_told:
            self.is_told = self.put(KEYS.commit(3), b"late")


def test_rm_takes_along_what_comes_while_it_is_at_work(store: LocalStore) -> None:
    """Nothing is left of the run, not even what its processes put before they met the note, nor what
    its idle coordinator writes beside it."""
    store.put(KEYS.lease_probe, b"alive")
    lively = LivelyStore(store)
    remove_objects(lively, RUN, find_remains(store, RUN), who="tester", now=1.0)
    assert lively.is_told
    assert list(store.list("")) == []


# ---- for scripts --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "status {run} --json",
        "events {run} --last 1 --json",
        "explain {run} version 1 --json",
        "report {run} --out {out} --json",
        "runs --redis {redis} --json",
        "config show {run} --json",
        "export {run} --out {out} --json",
        "export {run} --out {out} --format hf --json",
        "evaluate {run} --task {task} --json",
        "verify {run} --json",
        "gc {run} --dry-run --json",
        "doctor {run} --no-torch --json",
    ],
)
def test_each_document_says_how_it_is_to_be_read(
    command: str, past: Past, ddl: Ddl, tmp_path: Path
) -> None:
    """What `--json` prints is one object with a schema, and nothing else stands on stdout."""
    words = {"run": past.address, "redis": past.redis_url, "out": str(tmp_path)}
    words["task"] = str(past.folder / "task.py")
    told = ddl(*[word.format(**words) for word in command.split()])
    assert told.code == 0, told
    assert json.loads(told.out)["schema"] == 1


# ---- on a bucket --------------------------------------------------------------------------------


def test_all_of_it_on_s3(
    past: Past, weed: S3Server, ddl: Ddl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The same run, copied into a real bucket: looked at, reported on, exported, verified, forked,
    measured, deleted."""
    for name, value in weed.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", weed.endpoint_url)
    url = f"s3://{weed.bucket}/history"
    bucket = open_url(url)
    local = LocalStore(past.folder / "store")
    for info in local.list(""):
        bucket.put(info.key, local.get(info.key))
    bucket.close()
    for command, *words in (
        ("status", "--once"),
        ("status", "--json"),
        ("events", "--last", "4"),
        ("explain", "version", "2"),
    ):
        seen = ddl(command, f"{url}/{RUN}", *words)
        assert seen == ddl(command, f"{local.url}/{RUN}", *words)
        assert (seen.code, bool(seen.out)) == (0, True)
    page = json.loads(ddl("report", f"{url}/{RUN}", "--out", str(tmp_path), "--json").out)
    assert (page["versions"], page["page"]) == (COMMITS, str(tmp_path / "index.html"))
    assert "refused" in (tmp_path / "index.html").read_text()
    assert ddl("export", f"{url}/{RUN}", "--format", "hf", "--out", str(tmp_path)).code == 0
    assert ddl("export", f"{local.url}/{RUN}", "--out", str(tmp_path)).code == 0
    (plain,) = tmp_path.glob(f"{RUN}-*.safetensors")
    exported, expected = load_file(tmp_path / "model.safetensors"), load_file(plain)
    assert exported.keys() == expected.keys()
    assert all(exported[name].equal(expected[name]) for name in expected)
    assert ddl("verify", f"{url}/{RUN}", "--replay").code == 0
    forked = ddl("fork", f"{url}/{RUN}", "--at", "2", "--as", "young", "--set", "stop.commits=99")
    assert (forked.code, "\n  stop.commits = 99\n" in forked.out) == (0, True), forked
    listed = json.loads(ddl("runs", "--store", url, "--json").out)["runs"]
    assert [row["name"] for row in listed] == [RUN, "young"]
    task = ("--task", str(past.folder / "task.py"), "--json")
    old = json.loads(ddl("evaluate", f"{url}/{RUN}", "--at", "2", *task).out)["versions"]
    young = json.loads(ddl("evaluate", f"{url}/young", *task).out)["versions"]
    assert old[0]["measures"] == young[0]["measures"]
    for name in (RUN, "young"):
        assert ddl("rm", f"{url}/{name}", "--yes", "--force").code == 0
    assert json.loads(ddl("runs", "--store", url, "--json").out)["runs"] == []
