"""The table of field reports in tests/README.md names tests that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
NUMBERS = {
    *(1, 2, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 20, 22, 23, 25, 26, 28, 30, 31, 32, 34),
    *(35, 37, 38, 41, 42, 43, 46, 47, 48, 49, 51, 52, 55, 56, 58, 60),
}


def rows() -> dict[int, list[str]]:
    """Number of a report -> the tests that its row names."""
    text = (TESTS / "README.md").read_text()
    return {
        int(number): re.findall(r"`([\w/]+\.py::\w+)`", rest)
        for number, rest in re.findall(r"^\| T(\d+) \|(.*)$", text, re.MULTILINE)
    }


def test_every_report_has_its_row_and_every_row_a_test() -> None:
    assert rows().keys() == NUMBERS
    assert [number for number, tests in rows().items() if not tests] == []


def test_every_test_that_is_named_exists() -> None:
    functions: dict[str, set[str]] = {}
    missing = []
    for name in sorted({name for tests in rows().values() for name in tests}):
        path, _, function = name.partition("::")
        if path not in functions:
            file = TESTS / path
            tree = ast.parse(file.read_text() if file.exists() else "")
            functions[path] = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        if function not in functions[path]:
            missing.append(name)
    assert missing == []
