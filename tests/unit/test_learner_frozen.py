"""A learner trains on top of the run's frozen parameters, whatever its own task made of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

from ddl import config
from ddl.codec.digest import sha256
from ddl.codec.frozen import encode_frozen, frozen_digest
from ddl.coordinator.genesis import create, draft
from ddl.errors import IntegrityError, ObjectNotFoundError, RefusedError
from ddl.learner.frozen import take_frozen
from ddl.protocol.records import RunRecord
from ddl.store.local import LocalStore
from tests.coordinating import write_run

BASE = torch.tensor([1.0, 2.0, 3.0])


class Adapted(nn.Module):
    """A frozen base, something trained on top, and statistics of the machine's own."""

    own: torch.Tensor

    def __init__(self, base: torch.Tensor = BASE, *, name: str = "base") -> None:
        super().__init__()
        self.register_parameter(name, nn.Parameter(base.clone(), requires_grad=False))
        self.trained = nn.Parameter(torch.zeros(3))
        self.register_buffer("own", torch.zeros(2))


TASK = """
import torch, ddl
from tests.unit.test_learner_frozen import Adapted
def build(ctx):
    return ddl.Task(model=Adapted(), rules={"own": "local"})
"""


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def run(tmp_path: Path, store: LocalStore) -> RunRecord:
    toml = write_run(tmp_path, redis_url="redis://host/0", fragments={"num": 1})
    (tmp_path / "task.py").write_text(TASK)
    settings = config.load(toml).settings
    drafted = draft(settings, task_file=tmp_path / "task.py", init=None)
    made = create(store, settings, drafted, now=5.0)
    assert made is not None
    return made


def test_the_digest_is_that_of_the_object() -> None:
    """It is computed tensor by tensor, of every type and shape, in whatever order they are given."""
    tensors = {
        "a": torch.arange(6, dtype=torch.float16).reshape(2, 3).t(),
        "b": torch.tensor(3),
        "c": torch.empty(0, 4),
        "d": torch.tensor([True, False]),
        "e": torch.randn(5).bfloat16(),
        "f": torch.randn(1, 2, dtype=torch.float64),
    }
    assert frozen_digest(tensors) == sha256(encode_frozen(tensors))
    assert frozen_digest({**tensors, "b": torch.tensor(4)}) != frozen_digest(tensors)


def test_nothing_is_read_where_all_is_equal(run: RunRecord, store: LocalStore) -> None:
    """A base of many gigabytes is not downloaded by those who have it."""
    assert run.frozen is not None
    store.delete([run.frozen.key])
    assert take_frozen(Adapted(), run, store) == ""


def test_another_base_is_replaced(run: RunRecord, store: LocalStore) -> None:
    """In place, and what is trained or of the machine's own stays as it is."""
    model = Adapted(BASE + 1)
    model.own.fill_(7.0)
    before = model.get_parameter("base")
    told = take_frozen(model, run, store)
    assert told == "1 frozen parameter differed from the run's, and took on its values"
    assert model.get_parameter("base") is before
    assert before.tolist() == BASE.tolist()
    assert model.own.tolist() == [7.0, 7.0]
    assert model.trained.tolist() == [0.0, 0.0, 0.0]


def test_what_only_this_machine_has_of_its_own_is_no_difference(
    run: RunRecord, store: LocalStore
) -> None:
    model = Adapted()
    model.own.fill_(7.0)
    assert take_frozen(model, run, store) == ""
    assert model.own.tolist() == [7.0, 7.0]


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (Adapted(BASE, name="bass"), "this model lacks the frozen parameter 'base'"),
        (Adapted(BASE[:2]), r"float32 of shape \(2,\), the run's float32 of shape \(3,\)"),
        (Adapted(BASE.double()), r"float64 of shape \(3,\), the run's float32 of shape \(3,\)"),
    ],
    ids=["name", "shape", "dtype"],
)
def test_another_kind_of_base_is_refused(
    model: Adapted, sentence: str, run: RunRecord, store: LocalStore
) -> None:
    with pytest.raises(RefusedError, match=sentence):
        take_frozen(model, run, store)


def test_a_base_that_the_run_does_not_know_is_refused(run: RunRecord, store: LocalStore) -> None:
    bare = msgspec.structs.replace(run, frozen=None)
    with pytest.raises(RefusedError, match="frozen parameter 'base', which the run's model lacks"):
        take_frozen(Adapted(), bare, store)


def test_a_damaged_base_is_never_taken(run: RunRecord, store: LocalStore) -> None:
    """Nor is a missing one passed over."""
    assert run.frozen is not None
    data = bytearray(store.get(run.frozen.key))
    data[-1] ^= 1
    store.put(run.frozen.key, data)
    model = Adapted(BASE + 1)
    with pytest.raises(IntegrityError, match="with digest"):
        take_frozen(model, run, store)
    assert model.get_parameter("base").tolist() == (BASE + 1).tolist()
    store.delete([run.frozen.key])
    with pytest.raises(ObjectNotFoundError):
        take_frozen(model, run, store)
