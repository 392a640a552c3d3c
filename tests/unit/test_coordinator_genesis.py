"""The beginning of a run: what is put, from where the weights come, what a failure leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ddl import config
from ddl.config import Settings
from ddl.coordinator.export import export_model
from ddl.coordinator.genesis import create, draft
from ddl.coordinator.payloads import Payloads
from ddl.errors import ConfigError, StoreError, TaskError
from ddl.protocol.records import RunRecord
from ddl.store.local import LocalStore
from tests.coordinating import RUN, write_run
from tests.stores import HookedStore


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return write_run(tmp_path, redis_url="redis://user:hunter2@host/0")


@pytest.fixture
def settings(toml: Path) -> Settings:
    return config.load(toml).settings


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def created(
    store: LocalStore, settings: Settings, toml: Path, init: Path | None = None
) -> RunRecord:
    drafted = draft(settings, task_file=toml.parent / "task.py", init=init)
    run = create(store, settings, drafted, now=5.0)
    assert run is not None
    return run


def start_weights(store: LocalStore, run: RunRecord) -> dict[str, Tensor]:
    payloads = Payloads.of(store, run)
    weights: dict[str, Tensor] = {}
    for fragment, ref in enumerate(run.fragments):
        weights |= payloads.fragment(fragment, ref).weights
    return weights


def test_version_0_is_that_of_the_tasks_model(
    store: LocalStore, settings: Settings, toml: Path
) -> None:
    """The layout holds each trained tensor and buffer once; what is not trained lies apart."""
    run = created(store, settings, toml)
    names = {spec.name: (spec.kind, spec.aliases) for spec in run.layout.tensors}
    assert names == {
        "first.weight": ("parameter", ()),
        "first.bias": ("parameter", ()),
        "second.weight": ("parameter", ("tied.weight",)),
        "seen": ("buffer", ()),
    }
    assert start_weights(store, run)["first.weight"].shape == (3, 4)
    assert run.frozen is not None
    keys = {info.key for info in store.list(f"{RUN}/")}
    refs = [*run.fragments, run.frozen]
    assert keys == {ref.key for ref in refs} | {f"{RUN}/run.json"}
    assert [Payloads.of(store, run).read(ref) for ref in refs]


def test_no_secret_is_stored(store: LocalStore, settings: Settings, toml: Path) -> None:
    """The address of Redis belongs to one machine and may hold a password."""
    created(store, settings, toml)
    assert b"hunter2" not in store.get(f"{RUN}/run.json")


def test_the_seed_decides_the_start_weights(
    tmp_path: Path, store: LocalStore, settings: Settings, toml: Path
) -> None:
    """The same bytes from the same seed, others from another; the process' own lots are untouched."""
    before = torch.random.get_rng_state()
    run = created(store, settings, toml)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(3)
    again = created(LocalStore(tmp_path / "again"), settings, toml)
    assert again.fragments == run.fragments
    assert again.lineage != run.lineage
    reseeded = config.replace(settings, {"run.seed": 4})
    assert created(LocalStore(tmp_path / "other"), reseeded, toml).fragments != run.fragments


def test_start_weights_may_come_from_an_export(
    tmp_path: Path, store: LocalStore, settings: Settings, toml: Path
) -> None:
    """What one run exports begins another, whatever that one's seed."""
    run = created(store, settings, toml)
    exported = export_model(store, RUN, tmp_path / "out")
    reseeded = config.replace(settings, {"run.seed": 4})
    other = created(LocalStore(tmp_path / "other"), reseeded, toml, Path(exported.path))
    assert other.fragments == run.fragments
    assert other.frozen == run.frozen


def test_start_weights_of_another_model_are_refused(
    tmp_path: Path, store: LocalStore, settings: Settings, toml: Path
) -> None:
    """The first five differences are listed, of every kind; nothing is created."""
    tensors = {
        "first.weight": torch.zeros(3, 5),
        "first.bias": torch.tensor([1.0, float("inf"), 0.0]),
        "seen": torch.zeros(()),
        "unknown": torch.zeros(1),
        "unknown2": torch.zeros(1),
    }
    save_file(tensors, tmp_path / "init.safetensors")
    with pytest.raises(ConfigError) as error:
        created(store, settings, toml, tmp_path / "init.safetensors")
    for sentence in (
        "'first.bias' holds values that are not finite",
        "'first.weight' is (3, 5) in the file, (3, 4) in the model",
        "'frozen' is missing in the file",
        "'second.weight' is missing in the file",
        "'seen' is torch.float32 in the file, torch.int64 in the model",
        "and 2 more",
    ):
        assert sentence in str(error.value)
    assert not list(store.list(f"{RUN}/"))


@pytest.mark.parametrize("content", [None, b"", b"<html>no weights</html>"])
def test_start_weights_that_cannot_be_read(
    content: bytes | None, tmp_path: Path, store: LocalStore, settings: Settings, toml: Path
) -> None:
    """The file is named, whether it is missing or is no safetensors file."""
    file = tmp_path / "init.safetensors"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"init\.safetensors"):
        created(store, settings, toml, file)


def test_a_failure_removes_what_was_put(store: LocalStore, settings: Settings, toml: Path) -> None:
    """Also an interrupt: nothing half-created is left."""

    def interrupt(key: str) -> None:
        if "frozen" in key:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        create(
            HookedStore(store, before=interrupt),
            settings,
            draft(settings, task_file=toml.parent / "task.py", init=None),
            now=0.0,
        )
    assert not list(store.list(f"{RUN}/"))


def test_a_record_whose_answer_is_lost_keeps_its_objects(
    store: LocalStore, settings: Settings, toml: Path
) -> None:
    """Once run.json may be there, what it names must not be removed."""

    def lose(key: str) -> None:
        if "run.json" in key:
            raise StoreError("no answer")

    with pytest.raises(StoreError, match="no answer"):
        create(
            HookedStore(store, after=lose),
            settings,
            draft(settings, task_file=toml.parent / "task.py", init=None),
            now=0.0,
        )
    assert len(list(store.list(f"{RUN}/"))) == 4


def test_of_two_that_create_one_run_one_wins(
    store: LocalStore, settings: Settings, toml: Path
) -> None:
    """The other is told, and what the winner's record names is there."""
    run = created(store, settings, toml)
    late = draft(settings, task_file=toml.parent / "task.py", init=None)
    assert create(store, settings, late, now=9.0) is None
    assert start_weights(store, run)


def test_a_tensor_that_cannot_be_stored_is_named(
    store: LocalStore, settings: Settings, toml: Path
) -> None:
    (toml.parent / "task.py").write_text(
        "import torch, ddl\n"
        "def build(ctx):\n"
        "    model = torch.nn.Linear(2, 2)\n"
        "    model.register_buffer('wave', torch.zeros(2, dtype=torch.complex64))\n"
        "    return ddl.Task(model=model)\n"
    )
    with pytest.raises(TaskError, match=r"'wave' of the model is torch\.complex64"):
        created(store, settings, toml)


def test_start_weights_that_are_not_finite_are_no_divergence(
    store: LocalStore, settings: Settings, toml: Path
) -> None:
    """The tensor and the file are named, before anything is put."""
    (toml.parent / "task.py").write_text(
        "import torch, ddl\n"
        "def build(ctx):\n"
        "    model = torch.nn.Linear(2, 2)\n"
        "    torch.nn.init.constant_(model.bias, float('nan'))\n"
        "    return ddl.Task(model=model)\n"
    )
    with pytest.raises(TaskError, match=r"task\.py: 2 of 2 start values of 'bias' are not finite"):
        created(store, settings, toml)
    assert not list(store.list(""))


def test_local_tensors_are_kept_with_the_frozen(
    tmp_path: Path, store: LocalStore, settings: Settings, toml: Path
) -> None:
    """No round moves them, but an export is whole."""
    (toml.parent / "task.py").write_text(
        "import torch, ddl\n"
        "def build(ctx):\n"
        "    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))\n"
        "    return ddl.Task(model=model, rules={'1.*': 'local'})\n"
    )
    run = created(store, settings, toml)
    assert run.frozen is not None
    exported = export_model(store, RUN, tmp_path / "out")

    assert set(load_file(exported.path)) == {"0.weight", "0.bias", "1.weight", "1.bias"}
