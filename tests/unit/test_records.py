"""Records to bytes and back: one spelling each, and nothing of a newer schema is read."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from ddl.core.log import LogState
from ddl.errors import ConfigError, ProtocolError
from ddl.names import check_learner_id, check_run_name
from ddl.protocol import records
from ddl.protocol.keys import ObjectKeys, RegistryKeys, handin_field, parse_handin_field
from ddl.protocol.records import (
    Amount,
    Handin,
    Layout,
    LedgerRow,
    LogRecord,
    Record,
    RunRecord,
    TensorSpec,
    held_digest,
)
from ddl.protocol.wire import SCHEMA, canonical, digest, parse
from tests.core_records import apply, genesis, handin, learner, receipt, run_record, step_record


def examples() -> list[msgspec.Struct]:
    """One filled record of every kind that is stored or sent with a schema."""
    log = genesis()
    step = step_record(log, 0, (receipt(log, "a"), receipt(log, "é-ü")))
    apply(log, step)
    return [
        run_record(),
        step,
        handin(log),
        learner(step=3),
        log,
        log.head(),
        log.fragment_state(0),
    ]


@pytest.mark.parametrize("record", examples(), ids=lambda r: type(r).__name__)
def test_a_record_survives_its_bytes(record: msgspec.Struct) -> None:
    """Read back it is equal, and written again it has the same bytes, so digests can be chained."""
    data = canonical(record)
    again = parse(data, type(record), what="record")
    assert again == record
    assert canonical(again) == data
    assert (
        data
        == json.dumps(
            json.loads(data), sort_keys=True, separators=(",", ":"), ensure_ascii=False
        ).encode()
    )


@pytest.mark.parametrize("kind", [RunRecord, LogRecord, Handin, LogState])
def test_a_newer_schema_is_not_read(kind: Any) -> None:
    """It is refused with the number, what it is and what to do, not misread."""
    record = next(r for r in examples() if isinstance(r, kind))
    newer = canonical(record).replace(b'"schema":1', b'"schema":2')
    with pytest.raises(ProtocolError, match=r"demo/x has schema 2; this ddl reads up to 1"):
        parse(newer, kind, what="demo/x")
    assert SCHEMA == 1


def test_every_stored_record_carries_its_schema() -> None:
    """What lies in the store, or in Redis under a name of its own, says how it is to be read."""
    for name in ("RunRecord", "LogRecord", "RunEntry", "Handin", "LearnerRecord", "RunSnapshot"):
        assert "schema" in getattr(records, name).__struct_fields__, name


def test_unknown_fields_are_passed_over() -> None:
    """A newer minor version may add some."""
    data = canonical(handin(genesis()))
    extended = data[:-1] + b',"zzz_new":{"a":1}}'
    assert parse(extended, Handin, what="hand-in") == handin(genesis())


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "truncated"),
        (b"<html>", "malformed"),
        (b"{}", "missing required field"),
        (b'{"steps":"3","tokens":1}', "Expected `int`, got `str`"),
    ],
)
def test_what_is_no_record_is_a_protocol_error(data: bytes, what: str) -> None:
    """Never a traceback of the JSON library; the thing read is named."""
    kind = Amount if data.startswith(b'{"steps"') else Handin
    with pytest.raises(ProtocolError, match=rf"demo/x cannot be read: .*{what}"):
        parse(data, kind, what="demo/x")


def test_an_impossible_fate_is_not_read() -> None:
    """Words are checked like types."""
    data = canonical(receipt(genesis())).replace(b'"merged"', b'"eaten"')
    with pytest.raises(ProtocolError, match="Invalid enum value 'eaten'"):
        parse(data, records.Receipt, what="receipt")


def test_records_are_frozen() -> None:
    """A record that was read cannot be changed on the way to where it is used."""
    for value in vars(records).values():
        if isinstance(value, type) and issubclass(value, Record):
            assert value.__struct_config__.frozen, value


def test_amounts_and_the_ledger_add_up() -> None:
    """Work is counted in steps and tokens; a row's fates sum to what is settled."""
    row = LedgerRow().add("merged", Amount(steps=1, tokens=10))
    row = row.add("lost", Amount(steps=2, tokens=20)).add("merged", Amount(steps=4, tokens=40))
    assert row.merged == Amount(steps=5, tokens=50)
    assert row.settled == Amount(steps=7, tokens=70)
    assert row.settled - row.lost == Amount(steps=5, tokens=50)


def test_a_layout_knows_its_fragments() -> None:
    """Shares by parameters alone; buffers and local tensors do not count."""

    def spec(name: str, numel: int, fragment: int, kind: Any = "parameter") -> TensorSpec:
        return TensorSpec(
            name=name,
            shape=(numel,),
            dtype="float32",
            kind=kind,
            rule="local" if fragment < 0 else "mean",
            fragment=fragment,
        )

    layout = Layout(
        num_fragments=2,
        tensors=(
            spec("a", 6, 1),
            spec("b", 2, 0),
            spec("c", 90, 1, "buffer"),
            spec("d", 50, -1, "buffer"),
        ),
    )
    assert [[t.name for t in row] for row in layout.by_fragment] == [["b"], ["a", "c"]]
    assert layout.shares == (0.25, 0.75)
    assert layout.num_parameters == 8
    other = msgspec.structs.replace(layout, tensors=layout.tensors[:3])
    assert layout.fingerprint != other.fingerprint


def test_a_header_is_its_announcement_without_the_payload() -> None:
    """The header lies inside the payload, so it cannot name it; all else is the same."""
    given = handin(genesis())
    header = parse(given.header, Handin, what="header")
    assert header.payload.key == ""
    assert msgspec.structs.replace(header, payload=given.payload) == given


def test_held_digests_go_by_fragment_number() -> None:
    """Not by the order in which they were learned."""
    assert held_digest({1: "b", 0: "a"}) == held_digest({0: "a", 1: "b"}) == digest(b"a,b")
    assert held_digest({0: "b", 1: "a"}) != digest(b"a,b")


# ---- keys and names ---------------------------------------------------------------------------


def test_object_keys_sort_as_they_count() -> None:
    """Numbers are padded, so a listing is in their order; digests are cut to 16 digits."""
    keys = ObjectKeys("demo")
    sha256 = "0123456789abcdef" * 4
    assert keys.commit(7) == "demo/commits/000000000007.json"
    assert keys.commit(99) < keys.commit(100)
    assert keys.fragment(3, 12, sha256) == (
        "demo/fragments/f0003/v00000012-0123456789abcdef.safetensors"
    )
    assert keys.contribution("a.b", 2, 0, 5, sha256) == (
        "demo/contributions/a.b/000002/f0000-00000005-0123456789abcdef.safetensors"
    )


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", "-a", "a b", "x" * 65, "ä", "a\n"])
def test_a_learner_s_id_cannot_lead_out_of_its_folder(name: str) -> None:
    """Keys are built from ids, so an id that is no plain name is refused."""
    with pytest.raises(ConfigError, match="is not usable"):
        ObjectKeys("demo").join(name, 1)
    with pytest.raises(ConfigError, match="learner id"):
        check_learner_id(name)


@pytest.mark.parametrize("name", ["", "Demo", "a_b", "a/b", "-a", "x" * 49, "a\n"])
def test_a_run_s_name_is_plain(name: str) -> None:
    """1 to 48 of a-z, 0-9 and '-'."""
    with pytest.raises(ConfigError, match="run name"):
        check_run_name(name)


def test_redis_keys_lie_in_one_slot() -> None:
    """All keys of a run carry its name in braces, once; `all` misses none."""
    keys = RegistryKeys("demo")
    assert len(keys.all()) == len(set(keys.all())) == len(vars(keys)) - 1
    assert all(key.startswith("ddl:{demo}:") for key in keys.all())


def test_hand_in_fields_can_be_read_back() -> None:
    """Also with ids that hold dots and dashes."""
    assert parse_handin_field(handin_field("a.b-c_d", 3, 17)) == ("a.b-c_d", 3, 17)
    with pytest.raises(ValueError, match="not enough values"):
        parse_handin_field("nonsense")
