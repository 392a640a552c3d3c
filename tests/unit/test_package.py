"""The package as others meet it: its names, the cost of importing it, and what the wheel carries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import ddl

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "stdlib_gpt"
PACKAGED = ROOT / "cli" / "ddl_cli" / "data" / "stdlib_gpt"


def modules_after(statement: str) -> set[str]:
    """Names of the modules that a fresh interpreter holds after `statement`."""
    code = f"import sys; sys.path[:0] = {[str(ROOT), str(ROOT / 'cli')]!r}; {statement}"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("name", ddl.__all__)
def test_every_public_name_is_there(name: str) -> None:
    """Each is found as an attribute of `ddl`, and listed by `dir`."""
    assert getattr(ddl, name).__name__ == name
    assert name in dir(ddl)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """The lazy lookup does not change what a misspelling raises."""
    with pytest.raises(AttributeError, match="no attribute 'Lerner'"):
        _ = ddl.Lerner


@pytest.mark.parametrize("statement", ["import ddl", "import ddl.task", "import ddl_cli.app"])
def test_imports_are_cheap(statement: str) -> None:
    """Neither the library's name nor the command line brings in torch, or a client of a service."""
    heavy = {"torch", "numpy", "redis", "boto3", "botocore"}
    assert not modules_after(statement) & heavy


def test_the_wheel_carries_the_example_as_it_is() -> None:
    """The demo runs the very example that people read: same files, same bytes."""
    example = {file.name: file.read_bytes() for file in EXAMPLE.glob("*") if file.suffix != ".md"}
    packaged = {file.name: file.read_bytes() for file in PACKAGED.glob("*") if file.is_file()}
    assert {"task.py", "run.toml"} <= set(packaged)
    assert packaged == {name: data for name, data in example.items() if name in packaged}
    assert {name for name in example if name.endswith((".py", ".toml"))} == set(packaged)
