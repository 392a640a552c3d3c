"""Break each promise by hand, in a copy of the project, and see that its test then fails.

`just promises --broken [NUMBER ...]` does. Exit code 1 if a test passes all the same: it would not
notice a broken promise.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
COPIED: Final = ("ddl", "cli", "tests", "examples", "pyproject.toml")


class Break(NamedTuple):
    """The smallest change of one file that breaks a promise.

    `before` stands in the file exactly once. `test` holds without the change and fails with it.
    """

    promise: int
    what: str
    file: str
    before: str
    after: str
    test: str


COORDINATOR: Final = "tests/integration/test_coordinator.py"
PROMISES: Final = "tests/promises/test_promises.py"

BREAKS: Final = (
    Break(
        1,
        "a step waits until what it hands in is in the store",
        "ddl/learner/learner.py",
        "        plan = self._do_what_is_due()\n        if self._warm",
        "        plan = self._do_what_is_due()\n"
        "        with shared.changed:\n"
        "            shared.changed.wait_for(lambda: not shared.machine.num_uploading, 1.0)\n"
        "        if self._warm",
        f"{PROMISES}::test_the_training_thread_never_waits",
    ),
    Break(
        2,
        "a record overwrites what stands at its seq",
        "ddl/coordinator/history.py",
        'self._store.put(self._keys.commit(record.seq), data, mode="create")',
        "self._store.put(self._keys.commit(record.seq), data)",
        "tests/unit/test_coordinator_history.py::test_a_seq_that_is_taken_shows_what_took_it",
    ),
    Break(
        2,
        "momentum is lost with the process that made it",
        "ddl/coordinator/payloads.py",
        "momentum = outer.momentum if outer is not None else None",
        "momentum = None",
        f"{COORDINATOR}::test_a_crash_after_any_put_leaves_the_old_version_or_the_new_one",
    ),
    Break(
        2,
        "a record whose answer was lost is taken for another's",
        "ddl/coordinator/history.py",
        "        return there\n\n    def write_checkpoint",
        "        raise RefusedError(there.record.holder)\n\n    def write_checkpoint",
        f"{COORDINATOR}::test_a_record_whose_answer_was_lost_is_read_back",
    ),
    Break(
        3,
        "what has its receipt is let in again",
        "ddl/core/selection.py",
        "handin.lineage != log.lineage or handin.seq != last + 1",
        "handin.lineage != log.lineage or handin.seq > last + 1",
        f"{COORDINATOR}::test_receipts_are_unique",
    ),
    Break(
        3,
        "what is handed in stays in u",
        "ddl/merge/movement.py",
        "_take_off(self._anchor[spec.name].view(-1), decoded[spec.name], 1.0)",
        "_take_off(self._anchor[spec.name].view(-1), decoded[spec.name], 0.0)",
        "tests/lockstep/test_runs.py::test_carry_loses_nothing",
    ),
    Break(
        4,
        "the digest of what a learner holds is not compared",
        "ddl/core/selection.py",
        "if handin.held_digest != held_digest(hashes):",
        "if not handin.held_digest:",
        f"{PROMISES}::test_a_learner_that_holds_other_weights_cannot_change_the_model",
    ),
    Break(
        4,
        "work of another line is let in",
        "ddl/core/selection.py",
        "if handin.line != log.line:",
        "if handin.line < log.line:",
        f"{PROMISES}::test_work_of_another_line_cannot_change_the_model",
    ),
    Break(
        5,
        "values that are not finite pass the gate",
        "ddl/coordinator/gate.py",
        "if seen.bad:",
        "if len(seen.bad) > 1000:",
        f"{COORDINATOR}::test_a_contribution_with_nan_changes_nothing_but_its_receipt",
    ),
    Break(
        5,
        "what was refused is merged",
        "ddl/core/inbox.py",
        'if event.outcome == "ok":',
        'if event.outcome in ("ok", "refused"):',
        "tests/lockstep/test_gate.py::test_a_refused_contribution_changes_nothing_but_its_receipt",
    ),
    Break(
        6,
        "a merge starts from something else than what is stored",
        "ddl/coordinator/syncer.py",
        "self._bases.keep(fragment, made.step.outer, made.base)",
        "self._bases.keep(fragment, made.step.outer, base)",
        f"{PROMISES}::test_a_replay_gives_the_same_bytes",
    ),
    Break(
        7,
        "a module that unpickles is imported",
        "ddl/codec/frame.py",
        "from __future__ import annotations\n",
        "from __future__ import annotations\nimport pickle\n",
        f"{PROMISES}::test_no_source_knows_how_to_unpickle",
    ),
    Break(
        7,
        "a payload is unpickled before it is looked at",
        "ddl/coordinator/gate.py",
        "    try:\n        contribution = decode_contribution(",
        "    try:\n        __import__('pickle').loads(bytes(data))\n"
        "        contribution = decode_contribution(",
        f"{PROMISES}::test_a_pickle_in_place_of_a_contribution_is_refused_unread",
    ),
)


def main(numbers: list[str]) -> int:
    """Break the promises of these numbers, or all; the exit code."""
    unnoticed = 0
    for broken in BREAKS:
        if numbers and str(broken.promise) not in numbers:
            continue
        with tempfile.TemporaryDirectory(prefix="ddl-broken-") as folder:
            found = failure(broken, Path(folder))
        unnoticed += not found
        print(f"{broken.promise}. {broken.what}\n   {broken.test}", flush=True)
        print(f"   {found or 'UNNOTICED: the test passes all the same'}", flush=True)
    return int(unnoticed > 0)


def failure(broken: Break, folder: Path) -> str:
    """How the test fails in a copy of the project with the promise broken; empty if it passes."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    (folder / broken.file).write_text(changed(broken), "utf-8")
    # processes that the test starts import the copy as well, not what is installed
    path = os.pathsep.join([str(folder), str(folder / "cli")])
    environment = os.environ | {"PYTHONPATH": path, "COLUMNS": "300"}
    imports = "import ddl, ddl_cli; print(ddl.__file__, ddl_cli.__file__)"
    where = _run(["-c", imports], environment, folder)
    assert where.stdout.count(str(folder)) == 2, where.stdout
    test = ["-m", "pytest", "-q", "-x", "--tb=no", "-rfE", "-p", "no:cacheprovider", broken.test]
    ended = _run(test, environment, folder)
    if ended.returncode == 0:
        return ""
    told = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    assert ended.returncode == 1, f"{broken.test} did not run: {ended.stdout}{ended.stderr}"
    return told[0]


def changed(broken: Break) -> str:
    """The file with the promise broken."""
    source = (ROOT / broken.file).read_text("utf-8")
    assert source.count(broken.before) == 1, f"{broken.file}: where is {broken.before!r}?"
    return source.replace(broken.before, broken.after)


def _run(
    arguments: list[str], environment: dict[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
