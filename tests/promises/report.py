"""Run the tests of the promises, and say for each promise whether it holds.

    python -m tests.promises.report [--json] [ARGUMENTS OF PYTEST]
    python -m tests.promises.report --broken [NUMBER ...]

`--broken` breaks each promise in a copy of the project, and says how its test then fails.
`--json` prints {"promises": [{"number", "test", "passed"}]}. Exit code 1 if one does not pass, or if
a promise has no test. Slow ones are left out unless `-m promise` is among the arguments.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from typing import Final, TypedDict

import pytest

from tests.promises import broken

PROMISES: Final = {
    1: "The training thread never waits.",
    2: "A committed version is never lost, changed or half there.",
    3: "Every contribution is merged at most once and gets exactly one receipt.",
    4: "A learner that is not aligned cannot change the model.",
    5: "One bad contribution changes nothing but its own receipt.",
    6: "Same log and payloads, same kernel: the same bytes.",
    7: "Nothing is unpickled.",
}


class Row(TypedDict):
    """One test of one promise."""

    number: int
    test: str
    passed: bool


class Results:
    """A pytest plugin that gathers what became of each marked test."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, str], Row] = {}
        self._numbers: dict[str, list[int]] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            marks = item.iter_markers("promise")
            self._numbers[item.nodeid] = [number for mark in marks for number in mark.args]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        for number in self._numbers[report.nodeid]:
            row = Row(number=number, test=report.nodeid, passed=report.passed)
            self.rows[number, report.nodeid] = row


def main(arguments: list[str]) -> int:
    if "--broken" in arguments:
        return broken.main([argument for argument in arguments if argument != "--broken"])
    as_json = "--json" in arguments
    chosen = [argument for argument in arguments if argument != "--json"]
    results = Results()
    with redirect_stdout(sys.stderr):
        pytest.main(["-q", "-m", "promise and not slow", *chosen], plugins=[results])
    rows = [results.rows[key] for key in sorted(results.rows)]
    if as_json:
        print(json.dumps({"promises": rows}))
    else:
        for number, sentence in PROMISES.items():
            print(f"{number}. {sentence}")
            for row in rows:
                if row["number"] == number:
                    print(f"   {'holds' if row['passed'] else 'BROKEN'}  {row['test']}")
    tested = {row["number"] for row in rows}
    return int(tested != set(PROMISES) or not all(row["passed"] for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
