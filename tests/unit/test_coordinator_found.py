"""Contributions that only the store knows of."""

from __future__ import annotations

import msgspec
import torch

from ddl.codec.codecs import CODECS
from ddl.codec.contribution import encode_contribution
from ddl.coordinator.found import find_contributions
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import NO_PAYLOAD, HandinId, TensorSpec
from ddl.sim.store import MemoryStore
from tests.contract.registry_records import handin

KEYS = ObjectKeys("demo")
SPEC = TensorSpec(name="w", shape=(4,), dtype="float32", kind="parameter", rule="mean", fragment=0)


def keep(store: MemoryStore, name: str, *, damaged: bool = False) -> HandinId:
    """Put a learner's payload, as it is or with one digit of its announcement changed."""
    announced = msgspec.structs.replace(handin(name), tokens=987654, payload=NO_PAYLOAD)
    encoded = encode_contribution(
        [SPEC], {"w": torch.ones(4)}, {}, CODECS["fp32"], announced.header
    )
    data = bytes(encoded.buffer)
    assert b"987654" in data
    body = data.replace(b"987654", b"987655") if damaged else data
    store.put(KEYS.contribution(*announced.id, encoded.sha256), body)
    return announced.id


def test_whole_payloads_are_found() -> None:
    """Each with its announcement, unless its receipt is known."""
    store = MemoryStore()
    keep(store, "ada")
    bob = keep(store, "bob")
    (found,) = find_contributions(store, "demo", {"ada/1/0": 1})
    assert (found.id, found.tokens) == (bob, 987654)


def test_a_payload_that_is_not_what_its_key_names_is_nobodys() -> None:
    """One digit of it has changed, and it can still be read: seed 560. Were it let in, it would be
    refused for good, under the numbers that it says, while its learner could put it again."""
    store = MemoryStore()
    keep(store, "ada", damaged=True)
    assert find_contributions(store, "demo", {}) == []
