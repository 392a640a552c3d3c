"""Task files: what is loaded, what is refused, and what the refusal says."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ddl.errors import TaskError
from ddl.task import StepResult, Task, check_task, load_task, task_digest
from tests.contexts import context

GOOD = """
import torch
from torch import nn
import ddl

def build(ctx):
    torch.manual_seed(ctx.seed)
    model = nn.Linear(2, int(ctx.args.get("width", 3))).to(ctx.device)
    return ddl.Task(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        batches=[torch.ones(4, 2)],
        loss=lambda model, batch: model(batch).square().mean(),
        tokens=len,
    )
"""


def task(**changes: Any) -> Task:
    model = nn.Linear(2, 2)
    fields: dict[str, Any] = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "batches": [torch.ones(1, 2)],
        "loss": lambda model, batch: model(batch).mean(),
        "tokens": len,
    }
    return Task(**{**fields, **changes})


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that writes a task file and returns its path; `sys.path` is restored."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(text: str, name: str = "task.py") -> Path:
        file = tmp_path / name
        file.write_text(text)
        return file

    return write


def refusal(file: Path, **changes: Any) -> TaskError:
    with pytest.raises(TaskError) as caught:
        load_task(file, context(**changes))
    assert str(file) in str(caught.value), "a refusal names the file"
    return caught.value


def test_a_task_is_built_for_its_context(written: Any) -> None:
    """`build` gets the context; the task it returns is handed on as it is."""
    built = load_task(written(GOOD), context(args={"width": 5}))
    assert isinstance(built.model, nn.Linear)
    assert built.model.out_features == 5
    assert built.num_tokens(torch.ones(4, 2)) == 4


def test_the_same_seed_gives_the_same_weights(written: Any) -> None:
    """Two loads of one file are two tasks that start alike."""
    file = written(GOOD)
    first, second = (load_task(file, context()).model.state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert first["weight"] is not second["weight"]


def test_any_file_name_will_do(written: Any) -> None:
    """The suffix does not matter, and the module does not shadow an installed one."""
    load_task(written(GOOD, "json.txt"), context())
    assert "json.txt" not in (getattr(sys.modules["json"], "__file__", "") or "")


def test_a_task_file_may_import_its_neighbour(written: Any) -> None:
    """The folder of the file is searched, after everything installed."""
    written("WIDTH = 6", "neighbour_of_this_task.py")
    text = "from neighbour_of_this_task import WIDTH\n" + GOOD.replace(
        'ctx.args.get("width", 3)', "WIDTH"
    )
    built = load_task(written(text), context())
    assert built.model.weight.shape == (6, 2)
    sys.modules.pop("neighbour_of_this_task")


@pytest.mark.parametrize("purpose", ["init", "train", "evaluate"])
def test_a_misspelt_argument_of_the_run_is_refused(written: Any, purpose: Any) -> None:
    """`build` asks in vain for one of nearly its name; given under both names it is no mistake."""
    file = written(GOOD)
    with pytest.raises(TaskError, match=r"\[task.args\] widht: .* for 'width'") as refused:
        load_task(file, context(args={"widht": 5}, purpose=purpose))
    assert "--arg width=VALUE" in str(refused.value.hint)
    load_task(file, context(args={"widht": 5, "width": 4}, purpose=purpose))


def test_an_argument_for_another_purpose_is_no_mistake(written: Any) -> None:
    """Nothing that `build` asks for is called nearly so: it may ask for it when it trains."""
    load_task(written(GOOD), context(args={"data": "x"}, purpose="init"))


def test_without_training_a_model_is_enough(written: Any) -> None:
    """At genesis and for evaluation neither optimizer nor data is asked for."""
    bare = "from torch import nn\nimport ddl\nbuild = lambda ctx: ddl.Task(model=nn.Linear(1, 1))"
    assert load_task(written(bare), context(purpose="init")).optimizer is None
    assert load_task(written(bare), context(purpose="evaluate")).batches is None
    assert "neither `loss` nor `step`" in str(refusal(written(bare), purpose="train"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A path that is not there, or is a folder, is said so, with the cure."""
    assert "does not exist" in str(refusal(tmp_path / "tusk.py"))
    assert "is a folder" in str(refusal(tmp_path))


def test_a_file_without_build_is_refused(written: Any) -> None:
    """`build` must be there, and callable; the hint shows its signature."""
    for text in ("def bild(ctx): ...", "build = 3"):
        error = refusal(written(text))
        assert "defines no function `build`" in str(error)
        assert "def build(ctx: ddl.TaskContext) -> ddl.Task" in error.hint


@pytest.mark.parametrize(
    ("text", "line", "detail"),
    [
        ("x = 1\nx / 0\n", 2, "ZeroDivisionError"),
        ("def build(ctx):\n    return helper()\n\ndef helper():\n    return {}['lr']\n", 5, "KeyError: 'lr'"),
        ("import json\n\ndef build(ctx):\n    json.loads('{')\n", 4, "JSONDecodeError"),
        ("def build(ctx):\n    return (\n", 2, "SyntaxError"),
        ("import not_installed_anywhere\n", 1, "No module named 'not_installed_anywhere'"),
        ("import sys\nsys.exit(0)\n", 2, "SystemExit"),
    ],
)  # fmt: skip
def test_what_a_file_raises_is_told_with_its_line(
    written: Any, text: str, line: int, detail: str
) -> None:
    """The last line of the file itself that led to the error, the error, and its cause."""
    file = written(text)
    error = refusal(file)
    assert f"{file}:{line}: " in str(error)
    assert detail in str(error)
    assert error.__cause__ is not None


def test_a_file_that_raised_leaves_no_module(written: Any) -> None:
    """A failed import is not found half done by the next one."""
    before = set(sys.modules)
    refusal(written("1 / 0"))
    assert not {name for name in set(sys.modules) - before if name.startswith("_ddl_task_")}


def test_another_return_type_is_refused(written: Any) -> None:
    """A tuple of the right things is still not a task."""
    assert "returned tuple, not ddl.Task" in str(refusal(written("build = lambda ctx: (1, 2)")))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": lambda batch, progress: None}, "both `loss` and `step`"),
        ({"loss": None}, "neither `loss` nor `step`"),
        ({"tokens": None}, "no tokens"),
        ({"optimizer": None, "batches": None}, "no optimizer and no batches"),
        ({"model": "gpt"}, "Task.model is str"),
        ({"optimizer": "adam"}, "Task.optimizer is str"),
        ({"batches": 3}, "Task.batches is int"),
        ({"lr_factor": 0.5}, "Task.lr_factor is float"),
        ({"rules": {"weight": "median"}}, "Task.rules['weight'] is 'median'"),
        ({"model": nn.Linear(2, 2)}, "holds no trainable parameter"),
        ({"model": nn.Linear(2, 2, device="meta")}, "stands on meta, but was asked for on cpu"),
    ],
)
def test_a_task_that_cannot_train_is_refused(changes: dict[str, Any], message: str) -> None:
    """The field at fault is named."""
    with pytest.raises(TaskError) as caught:
        check_task(task(**changes), context())
    assert message in str(caught.value)


def test_the_plain_task_is_accepted() -> None:
    """What the refusals above start from is fine, and so is a step of one's own without tokens."""
    check_task(task(), context())
    own = task(loss=None, tokens=None, step=lambda batch, progress: StepResult(loss=0.0, tokens=1))
    check_task(own, context())


def test_a_frozen_model_is_refused() -> None:
    """An optimizer over parameters that take no gradient would train nothing."""
    frozen = task()
    frozen.model.requires_grad_(requires_grad=False)
    with pytest.raises(TaskError, match="no trainable parameter"):
        check_task(frozen, context())


@pytest.mark.parametrize("tokens", [0, -1, True, 1.5, torch.tensor(3)])
def test_tokens_are_whole_numbers_above_zero(tokens: Any) -> None:
    """From the task's `tokens` and from a step of its own alike."""
    with pytest.raises(TaskError, match="whole number above 0"):
        task(tokens=lambda batch: tokens).num_tokens(None)
    with pytest.raises(TaskError, match="whole number above 0"):
        StepResult(loss=0.0, tokens=tokens)


def test_the_digest_is_of_the_bytes(written: Any) -> None:
    """It changes with any change of the file, and with nothing else."""
    file = written("x")
    # printf x | sha256sum
    known = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    assert task_digest(file) == known
    file.write_text("x ")
    assert task_digest(file) != known


def test_a_file_is_run_as_it_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it was changed within a second to another text of the same size."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "task.py"
    text = "import torch, ddl\ndef build(ctx): return ddl.Task(model=torch.nn.Linear(WIDTH, 1))\n"
    for width in ("3", "5"):
        file.write_text(text.replace("WIDTH", width))
        os.utime(file, (1_000_000_000, 1_000_000_000))
        (weight, _) = load_task(file, context(purpose="init")).model.parameters()
        assert weight.shape == (1, int(width))
    assert not (tmp_path / "__pycache__").exists()
