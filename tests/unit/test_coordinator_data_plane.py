"""The gate and the syncer: which payloads pass, and what a merge makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from ddl import config
from ddl.clock import SystemClock
from ddl.codec.codecs import CODECS
from ddl.codec.contribution import encode_contribution
from ddl.codec.digest import sha256
from ddl.coordinator.gate import Passed, Rejected, check_announced_size, check_payload
from ddl.coordinator.genesis import create, draft
from ddl.coordinator.payloads import Payloads
from ddl.coordinator.syncer import Syncer
from ddl.core import events as e
from ddl.core.log import FragmentHead, LogState
from ddl.errors import IntegrityError, StoreUnavailableError
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import NO_PAYLOAD, Amount, Handin, ObjectRef, RunRecord
from ddl.store.local import LocalStore
from tests.coordinating import RUN, write_run
from tests.stores import HookedStore, SilentStore

FRAGMENT = 0


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture(params=[(t, d) for t in ("float32", "bfloat16") for d in ("full", "int4-step")])
def run(request: pytest.FixtureRequest, tmp_path: Path, store: LocalStore) -> RunRecord:
    """A run, in both types of published weights and both ways of publication."""
    dtype, down = request.param
    toml = write_run(
        tmp_path,
        redis_url="redis://host/0",
        fragments={"publish_dtype": dtype},
        codec={"down": down},
    )
    settings = config.load(toml).settings
    drafted = draft(settings, task_file=tmp_path / "task.py", init=None)
    run = create(store, settings, drafted, now=0.0)
    assert run is not None
    return run


def made(
    run: RunRecord, *, learner: str = "a", seq: int = 1, scale: float = 1.0, codec: str = "fp32"
) -> tuple[Handin, bytes]:
    """A contribution of fragment 0 whose deltas are all `scale`, and its announcement."""
    bare = Handin(
        learner=learner,
        incarnation=1,
        fragment=FRAGMENT,
        seq=seq,
        lineage=run.lineage,
        line=0,
        launch=7,
        oldest_base=0,
        held=(0, 0),
        held_digest="",
        steps=4,
        tokens=40,
        total=Amount(steps=4, tokens=40),
        codec=CODECS[codec].tag,
        payload=NO_PAYLOAD,
    )
    deltas: dict[str, Tensor] = {}
    buffers: dict[str, Tensor] = {}
    for spec in run.layout.by_fragment[FRAGMENT]:
        if spec.kind == "parameter":
            deltas[spec.name] = torch.full(spec.shape, scale)
        else:
            buffers[spec.name] = torch.ones(spec.shape, dtype=torch.int64)
    encoded = encode_contribution(
        run.layout.by_fragment[FRAGMENT], deltas, buffers, CODECS[codec], bare.header
    )
    key = ObjectKeys(RUN).contribution(*bare.id, encoded.sha256)
    ref = ObjectRef(key=key, bytes=len(encoded.buffer), sha256=encoded.sha256)
    return msgspec.structs.replace(bare, payload=ref), bytes(encoded.buffer)


def announced(handin: Handin, data: bytes) -> Handin:
    """The same announcement, of other bytes."""
    ref = ObjectRef(key=handin.payload.key, bytes=len(data), sha256=sha256(data))
    return msgspec.structs.replace(handin, payload=ref)


# ---- gate ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_a_sound_payload_passes_with_its_norm(run: RunRecord, codec: str) -> None:
    """The norm is that of the decoded values: sqrt(n * 0.5^2) for n values of 0.5."""
    handin, data = made(run, codec=codec, scale=0.5)
    specs = run.layout.by_fragment[FRAGMENT]
    assert check_announced_size(handin, specs) is None
    passed = check_payload(handin, bytearray(data), specs)
    assert isinstance(passed, Passed)
    count = sum(spec.numel for spec in specs if spec.kind == "parameter")
    assert passed.seen.norm == pytest.approx((count * 0.25) ** 0.5, rel=0.01)


def test_other_bytes_than_announced_are_damaged(run: RunRecord) -> None:
    """The learner may put the right ones again; both sizes and digests are told."""
    handin, data = made(run)
    for bad in (b"", data[:-1], data + b"x", data[:-1] + bytes([data[-1] ^ 1])):
        verdict = check_payload(handin, bytearray(bad), run.layout.by_fragment[FRAGMENT])
        assert isinstance(verdict, Rejected)
        assert verdict.outcome == "damaged"
        assert f"{len(bad)} bytes" in verdict.reason


def test_bytes_that_were_meant_so_are_refused(run: RunRecord) -> None:
    """Another fragment's tensors, another codec's, no frame at all: putting them again helps not."""
    handin, data = made(run)
    specs = run.layout.by_fragment[FRAGMENT]
    _, coded = made(run, codec="bf16")
    for bad in (b"<html>", coded):
        verdict = check_payload(announced(handin, bad), bytearray(bad), specs)
        assert isinstance(verdict, Rejected)
        assert verdict.outcome == "refused"
    verdict = check_payload(handin, bytearray(data), run.layout.by_fragment[1])
    assert isinstance(verdict, Rejected)
    assert "tensor" in verdict.reason


def test_a_header_that_is_not_the_announcement_is_refused(run: RunRecord) -> None:
    """A payload counts for the steps and tokens it was made with, and for no others."""
    handin, data = made(run)
    richer = msgspec.structs.replace(handin, tokens=4000)
    specs = run.layout.by_fragment[FRAGMENT]
    assert check_payload(richer, bytearray(data), specs) == Rejected(
        "refused", "the payload's header is not its announcement"
    )


def test_an_impossible_size_is_refused_unseen(run: RunRecord) -> None:
    """A terabyte is not fetched to find that it is no contribution."""
    handin, _ = made(run)
    huge = ObjectRef(key=handin.payload.key, bytes=2**40, sha256="0" * 64)
    verdict = check_announced_size(
        msgspec.structs.replace(handin, payload=huge), run.layout.by_fragment[FRAGMENT]
    )
    assert verdict is not None
    assert verdict.outcome == "refused"
    unknown = msgspec.structs.replace(handin, codec="int3/9")
    verdict = check_announced_size(unknown, run.layout.by_fragment[FRAGMENT])
    assert verdict is not None
    assert "int3/9" in verdict.reason


# ---- syncer -------------------------------------------------------------------------------------


def order(base: FragmentHead, *handins: Handin, lr: float = 1.0) -> e.Merge:
    inputs = tuple(e.MergeInput(handin, 100.0) for handin in handins)
    return e.Merge(launch=7, fragment=FRAGMENT, base=base, inputs=inputs, lr=lr, momentum=0.5)


def fetched(syncer: Syncer, store: LocalStore, handin: Handin, data: bytes) -> e.Fetched:
    store.put(handin.payload.key, data)
    syncer.expect(handin.id)
    return syncer.fetch(handin)


def weights(
    store: LocalStore, run: RunRecord, step: e.Merged | e.MergeFailed
) -> Mapping[str, Tensor]:
    assert isinstance(step, e.Merged)
    return Payloads.of(store, run).fragment(FRAGMENT, step.step.published).weights


def test_a_merge_is_the_outer_step_on_what_was_published(run: RunRecord, store: LocalStore) -> None:
    """Deltas of 1 and momentum 0.5: the first step moves by lr * (1 + 0.5 * 1) = 1.5."""
    syncer = Syncer(store, run, SystemClock())
    handin, data = made(run)
    assert fetched(syncer, store, handin, data).outcome == "ok"
    base = LogState.genesis(run).fragments[FRAGMENT]
    after = weights(store, run, syncer.merge(order(base, handin)))
    before = Payloads.of(store, run).fragment(FRAGMENT, base.published).weights
    for name, value in after.items():
        torch.testing.assert_close(value, before[name] - 1.5, rtol=0, atol=0.01)


def test_a_merge_from_memory_and_one_from_the_store_give_the_same_bytes(
    run: RunRecord, store: LocalStore
) -> None:
    """T04: master and momentum of a fragment survive a restart bit for bit."""
    first, second = made(run, scale=0.3), made(run, seq=2, scale=-0.1)
    syncer = Syncer(store, run, SystemClock())
    for handin, data in (first, second):
        fetched(syncer, store, handin, data)
    head = LogState.genesis(run).fragments[FRAGMENT]
    one = syncer.merge(order(head, first[0]))
    assert isinstance(one, e.Merged)
    head = msgspec.structs.replace(
        head, version=1, published=one.step.published, outer=one.step.outer
    )
    two = syncer.merge(order(head, second[0]))
    restarted = Syncer(store, run, SystemClock())
    fetched(restarted, store, *second)
    again = restarted.merge(order(head, second[0]))
    assert isinstance(two, e.Merged)
    assert isinstance(again, e.Merged)
    assert again.step == two.step
    assert again.health == two.health


def test_a_merge_that_was_cut_short_is_repeated(run: RunRecord, store: LocalStore) -> None:
    """After a store error the same order gives the same objects."""
    broken = {"/outer/"}

    def fail(key: str) -> None:
        if any(part in key for part in broken):
            raise StoreUnavailableError("no answer")

    syncer = Syncer(HookedStore(store, before=fail), run, SystemClock())
    handin, data = made(run)
    fetched(syncer, store, handin, data)
    command = order(LogState.genesis(run).fragments[FRAGMENT], handin)
    with pytest.raises(StoreUnavailableError):
        syncer.merge(command)
    broken.clear()
    merged = syncer.merge(command)
    assert isinstance(merged, e.Merged)
    fragments = list(store.list(f"{RUN}/fragments/f0000/"))
    assert len(fragments) == 2, "version 0, and version 1 once"


def test_a_merge_that_overflows_blames_the_largest(run: RunRecord, store: LocalStore) -> None:
    """Each value is finite, the result is not: nothing is published."""
    syncer = Syncer(store, run, SystemClock())
    small, large = made(run), made(run, learner="b", scale=3.3e38)
    for handin, data in (small, large):
        assert fetched(syncer, store, handin, data).outcome == "ok"
    command = order(LogState.genesis(run).fragments[FRAGMENT], small[0], large[0], lr=100.0)
    failed = syncer.merge(command)
    assert isinstance(failed, e.MergeFailed)
    assert [id_ for id_, _ in failed.bad] == [large[0].id]
    assert len(list(store.list(f"{RUN}/fragments/f0000/"))) == 1


def test_what_the_store_says_of_a_payload_becomes_an_outcome(
    run: RunRecord, store: LocalStore
) -> None:
    """Missing is the learner's matter; a store that does not answer is not."""
    handin, _ = made(run)
    syncer = Syncer(store, run, SystemClock())
    assert syncer.fetch(handin).outcome == "missing"

    dumb = Syncer(SilentStore(store), run, SystemClock())
    assert dumb.fetch(handin).outcome == "unavailable"


def test_a_payload_dropped_while_it_comes_is_not_kept(run: RunRecord, store: LocalStore) -> None:
    """It has its receipt; keeping it would fill the memory for ever."""
    syncer = Syncer(store, run, SystemClock())
    handin, data = made(run)
    store.put(handin.payload.key, data)
    syncer.expect(handin.id)
    syncer.drop(handin.id)
    assert syncer.fetch(handin).outcome == "ok"
    with pytest.raises(KeyError):
        syncer.merge(order(LogState.genesis(run).fragments[FRAGMENT], handin))


def test_a_base_that_is_gone_is_an_integrity_error(run: RunRecord, store: LocalStore) -> None:
    """Nothing can stand in for it, and it is named."""
    syncer = Syncer(store, run, SystemClock())
    handin, data = made(run)
    fetched(syncer, store, handin, data)
    base = LogState.genesis(run).fragments[FRAGMENT]
    store.delete([base.published.key])
    with pytest.raises(IntegrityError, match=base.published.key):
        syncer.merge(order(base, handin))
