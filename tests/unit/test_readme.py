"""The tables of field reports (tests/README.md) and of crashes (ARCHITECTURE.md) name tests that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
NUMBERS = {
    *(1, 2, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 20, 22, 23, 25, 26, 28, 30, 31, 32, 34),
    *(35, 37, 38, 41, 42, 43, 46, 47, 48, 49, 51, 52, 55, 56, 58, 60),
}


TEST = r"`([\w/]+\.py::\w+)`"


def rows() -> dict[int, list[str]]:
    """Number of a report -> the tests that its row names."""
    text = (TESTS / "README.md").read_text()
    return {
        int(number): re.findall(TEST, rest)
        for number, rest in re.findall(r"^\| T(\d+) \|(.*)$", text, re.MULTILINE)
    }


def crashes() -> dict[str, list[str]]:
    """Crash or fault -> the tests that its row names."""
    text = (TESTS.parent / "ARCHITECTURE.md").read_text()
    table = text.partition("| crash or fault |")[2].partition("\n\n")[0].splitlines()[2:]
    return {row.split("|")[1].strip(): re.findall(TEST, row) for row in table}


def missing(names: set[str]) -> list[str]:
    """Those of the named tests that are not there."""
    functions: dict[str, set[str]] = {}
    for path in {name.partition("::")[0] for name in names}:
        file = TESTS / path
        tree = ast.parse(file.read_text() if file.exists() else "")
        functions[path] = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    return sorted(n for n in names if n.partition("::")[2] not in functions[n.partition("::")[0]])


def test_every_report_has_its_row_and_every_row_a_test() -> None:
    assert rows().keys() == NUMBERS
    assert [number for number, tests in rows().items() if not tests] == []


def test_every_crash_has_a_test() -> None:
    assert len(crashes()) >= 12
    assert [crash for crash, tests in crashes().items() if not tests] == []


def test_every_test_that_is_named_exists() -> None:
    tables = [*rows().values(), *crashes().values()]
    assert missing({name for tests in tables for name in tests}) == []
