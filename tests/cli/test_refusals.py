"""One mistake, one exit code, whichever command meets it; and who is refused leaves nothing behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ddl.errors import RefusedError
from ddl.learner.learner import Learner
from ddl.learner.session import JoinOptions, open_session
from ddl.registry.learner import RedisLearner
from tests.commands import Ddl
from tests.coordinating import RUN, TASK, options, running, write_run
from tests.redis_servers import admin

NOWHERE = "redis://127.0.0.1:1/0"
"""A port that nothing listens on."""

TRAINABLE = TASK.replace(
    '    return Task(model=Tiny(int(ctx.args.get("width", 4))))',
    """\
    model = Tiny(int(ctx.args.get("width", 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Task(model=model, optimizer=optimizer, batches=[torch.ones(2, 4)],
                loss=lambda model, x: model.second(model.first(x)).mean(), tokens=len,
                evaluate=lambda model: {"loss": 0.5})""",
)
OTHER = TRAINABLE.replace('"width", 4', '"width", 5')


class Setting:
    """A run that goes on, and what there is beside it."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self.folder = folder
        self.redis_url = redis_url
        self.words = {
            "run": f"{redis_url}?run={RUN}",
            "unknown": f"{redis_url}?run=nobody",
            "silent": f"{NOWHERE}?run={RUN}",
            "stored": f"{(folder / 'store').as_uri()}/{RUN}",
            "unstored": f"{(folder / 'store').as_uri()}/nobody",
            "unmade": f"{(folder / 'missing').as_uri()}/{RUN}",
            "out": str(folder / "out"),
            "other": str(folder / "other.py"),
            "no_task": str(folder / "missing.py"),
        }
        self.words |= {name: str(folder / f"{name}.toml") for name in ("good", "bad", "elsewhere")}

    def arguments(self, command: str) -> list[str]:
        return [word.format(**self.words) for word in command.split()]

    def left(self) -> tuple[set[str], dict[str, object]]:
        """Files, and keys of Redis but for those that a coordinator goes on changing."""
        probes = {self.folder / "store" / name for name in (".scratch", "_probe")}
        files = {str(path) for path in self.folder.rglob("*") if not {path, *path.parents} & probes}
        with admin(self.redis_url) as client:
            keys = {str(key) for key in client.keys("*")}
            learners = client.hgetall(f"ddl:{{{RUN}}}:learners")
            epoch = client.get(f"ddl:{{{RUN}}}:epoch")
        keys -= {f"b'ddl:{{{RUN}}}:{name}'" for name in ("arrivals", "events", "news", "rounds")}
        return files, {"keys": keys, "learners": learners, "epoch": epoch}


@pytest.fixture
def setting(tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Setting]:
    monkeypatch.setenv("DDL_SPOOL", str(tmp_path / "spool"))
    toml = write_run(tmp_path, redis_url=redis_url)
    (tmp_path / "task.py").write_text(TRAINABLE)
    (tmp_path / "other.py").write_text(OTHER)
    text = toml.read_text()
    toml.rename(tmp_path / "good.toml")
    (tmp_path / "bad.toml").write_text(text.replace("[outer]", "[outer]\nlr = 0"))
    (tmp_path / "elsewhere.toml").write_text(text.replace(redis_url, NOWHERE))
    with running(options(tmp_path / "good.toml")):
        yield Setting(tmp_path, redis_url)


TABLE = {
    "a run that Redis does not know": (
        2,
        "the run 'nobody'",
        [
            "status {unknown} --once",
            "export {unknown} --out {out}",
            "evaluate {unknown} --task {other}",
            "verify {unknown}",
            "fork {unknown} --as new",
            "gc {unknown}",
            "stop {unknown}",
            "pause {unknown}",
            "set {unknown} round.quorum=2",
            "learner join {unknown} --task {other} --wait 0",
            "learner drain {unknown} x",
        ],
    ),
    "a run that does not lie in the store": (
        2,
        "no run 'nobody'",
        [
            "status {unstored} --once",
            "export {unstored} --out {out}",
            "evaluate {unstored} --task {other}",
            "verify {unstored}",
            "fork {unstored} --as new",
            "gc {unstored}",
        ],
    ),
    "a store that is not there": (
        2,
        "missing does not exist",
        [
            "status {unmade} --once",
            "export {unmade} --out {out}",
            "evaluate {unmade} --task {other}",
            "verify {unmade}",
            "fork {unmade} --as new",
            "gc {unmade}",
            "runs --store file://{out}/../missing",
            "learner join {run} --task {other} --store file://{out}/../missing",
        ],
    ),
    "a coordinator from an address": (
        2,
        "not from an address",
        ["coordinator start {run}", "coordinator start {stored}"],
    ),
    "a file's name with a slip of the pen": (
        2,
        "'run.tmol' is neither the name of a run nor a file run.toml",
        ["status run.tmol", "learner join run.tmol --task {other}", "config show run.tmol"],
    ),
    "a folder that cannot be made": (
        2,
        "cannot make the folder",
        ["export {run} --out {good}", "export {run} --out {good}/below"],
    ),
    "nothing to remove": (2, "nothing of a run", ["rm {unmade} --yes", "rm {unknown} --yes"]),
    "a Redis that does not answer": (
        3,
        "127.0.0.1:1",
        [
            "status {silent} --once",
            "export {silent} --out {out}",
            "verify {silent}",
            "stop {silent}",
            "rm {silent} --yes",
            "runs --redis redis://127.0.0.1:1/0",
            "learner join {silent} --task {other}",
            "coordinator start {elsewhere}",
        ],
    ),
    "an address that cannot be read": (
        2,
        "unknown scheme",
        [
            "status http://host/x",
            "export http://host/x --out {out}",
            "verify http://host/x",
            "stop http://host/x",
            "rm http://host/x",
            "doctor http://host/x",
            "learner join http://host/x --task {other}",
        ],
    ),
    "settings that cannot work": (
        2,
        "outer.lr = 0.0: must be above 0 and at most 1000",
        [
            "status {bad}",
            "export {bad} --out {out}",
            "verify {bad}",
            "stop {bad}",
            "doctor {bad}",
            "config show {bad}",
            "coordinator start {bad}",
        ],
    ),
    "a task file that is not there": (
        2,
        "missing.py does not exist",
        [
            "learner join {run} --task {no_task}",
            "evaluate {run} --task {no_task}",
            "coordinator start {good} --set task.file=missing.py",
        ],
    ),
    "another model than the run's": (
        4,
        "'first.weight'",
        [
            "learner join {run} --task {other}",
            "learner join {good} --task {other}",
            "evaluate {run} --task {other}",
            "coordinator start {good} --set task.file=other.py",
        ],
    ),
    "an argument that the task does not have": (
        2,
        "Did you mean 'width'?",
        [
            "learner join {run} --task {other} --arg widht=5",
            "evaluate {run} --task {other} --arg widht=5",
        ],
    ),
    "a device that is not there": (
        2,
        "--device",
        [
            "learner join {run} --task {other} --device cuda:99",
            "evaluate {run} --task {other} --device cuda:99",
        ],
    ),
    "an option without its =": (
        2,
        "is not KEY=VALUE",
        [
            "learner join {run} --task {other} --arg width",
            "set {run} round.quorum",
            "config show {good} --set round.quorum",
            "coordinator start {good} --set round.quorum",
        ],
    ),
}


@pytest.mark.parametrize("mistake", TABLE)
def test_one_mistake_has_one_code_and_leaves_nothing(
    mistake: str, setting: Setting, ddl: Ddl
) -> None:
    """Told on stderr in the same words; no file, no key, no epoch and no incarnation is left."""
    code, sentence, commands = TABLE[mistake]
    before = setting.left()
    for command in commands:
        told = ddl(*setting.arguments(command))
        assert (told.code, sentence in told.err) == (code, True), (command, told)
        assert told.out == "", command
        assert "Traceback" not in told.err, command
        assert setting.left() == before, command


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def build(ctx)\n", "task.py:1: the import of the task raised SyntaxError"),
        ("def build(ctx):\n    return 1 / 0\n", "task.py:2: build(ctx) of the task raised Zero"),
        ("def build(ctx):\n    return 3\n", "task.py: build(ctx) returned int, not ddl.Task"),
        (
            "import ddl, torch\n"
            "def build(ctx):\n"
            "    model = torch.nn.Linear(2, 2).requires_grad_(False)\n"
            "    return ddl.Task(model=model)\n",
            "task.py: Task has neither `loss` nor `step`",
        ),
    ],
    ids=["syntax", "raises", "no task", "no loss"],
)
def test_a_learner_whose_task_is_bad_was_never_there(
    text: str, sentence: str, setting: Setting, ddl: Ddl
) -> None:
    """The run does not hear of it, and its id is as new."""
    (setting.folder / "task.py").write_text(text)
    before = setting.left()
    told = ddl(*setting.arguments("learner join {run} --id x --task"), f"{setting.folder}/task.py")
    assert (told.code, sentence in told.err) == (2, True), told
    assert setting.left() == before


def test_a_learner_takes_the_task_that_its_run_toml_names(setting: Setting, ddl: Ddl) -> None:
    """Found beside that file, from any folder; an address tells none, so one must be given with it."""
    (setting.folder / "task.py").write_text("raise RuntimeError('read')\n")
    told = ddl(*setting.arguments("learner join {good}"))
    assert told.code == 2, told
    assert f"{setting.folder}/task.py" in told.err
    assert "RuntimeError: read" in told.err
    told = ddl("learner", "join", setting.words["run"])
    assert told.code == 2, told
    assert "no task file is named, and an address tells none. Give --task FILE" in told.err


def test_a_learner_waits_for_its_run_and_names_those_that_are_there(
    setting: Setting, ddl: Ddl
) -> None:
    """For as long as it was told; a name with a slip of the pen is seen beside the right one."""
    before = setting.left()
    address = setting.words["run"] + "k"
    told = ddl("learner", "join", address, "--task", f"{setting.folder}/task.py", "--wait", "0.4")
    assert told.code == 2, told
    where = f"{setting.redis_url}"
    assert f"waiting for run '{RUN}k' at {where} to be started, for up to 0.4 s" in told.err
    assert told.err.count(f"those it knows: {RUN}") == 2
    assert "Start its coordinator: ddl coordinator start RUN.toml" in told.err
    assert setting.left() == before


def test_a_learner_waits_for_redis_as_well(setting: Setting, ddl: Ddl) -> None:
    """Nobody listens on port 1: it says so, waits for as long as it was told, and blames Redis."""
    address, task = f"redis://127.0.0.1:1/0?run={RUN}", f"{setting.folder}/task.py"
    told = ddl("learner", "join", address, "--task", task, "--wait", "0.4")
    assert told.code == 3, told
    assert f"waiting for run '{RUN}' at redis://127.0.0.1:1/0 to be started" in told.err
    assert "registry-unavailable: Redis at redis://127.0.0.1:1/0 cannot be reached" in told.err


def test_a_learner_without_a_spool_was_never_there(
    setting: Setting, ddl: Ddl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in the place of the folder is a mistake of this machine's settings."""
    monkeypatch.setenv("DDL_SPOOL", str(setting.folder / "task.py"))
    before = setting.left()
    task = f"{setting.folder}/task.py"
    told = ddl(*setting.arguments("learner join {run} --id x --task"), task)
    assert (told.code, "spool folder" in told.err, "DDL_SPOOL" in told.err) == (2, True, True), told
    assert setting.left() == before


def test_an_id_that_is_alive_costs_its_holder_nothing(setting: Setting, ddl: Ddl) -> None:
    """Neither an incarnation nor its spool folder."""
    join = JoinOptions(address=setting.words["run"], learner="x")
    with closing(open_session(join)) as holder:
        before = setting.left()
        task = f"{setting.folder}/task.py"
        told = ddl(*setting.arguments("learner join {run} --id x --task"), task)
        assert (told.code, "learner 'x' is alive" in told.err) == (4, True), told
        assert "(--id; in Python id=...)" in told.err
        assert "(--takeover; in Python takeover=True)" in told.err
        assert setting.left() == before
        assert holder.spool.folder.is_dir()


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (".mean(), tokens", ".mean().item(), tokens", "Task.loss(model, batch) returned float"),
        (
            ".mean(), tokens",
            ", tokens",
            "Task.loss(model, batch) returned a tensor of shape (2, 4)",
        ),
        (
            ".mean(), tokens",
            ".mean().detach(), tokens",
            "Task.loss(model, batch) returned a tensor without a",
        ),
        ("tokens=len", "tokens=lambda batch: 'two'", "Task.tokens(batch) is 'two'"),
        ("tokens=len,", "step=lambda b, p: 3, tokens=len,", "Task has both `loss` and `step`"),
        (
            "loss=lambda model, x: model.second(model.first(x)).mean(), tokens=len",
            "step=lambda b, p: 3",
            "Task.step(batch, progress) returned int",
        ),
        ("batches=[torch.ones(2, 4)]", "batches=[]", "Task.batches is empty"),
    ],
)
def test_rubbish_from_a_step_is_named(
    old: str, new: str, sentence: str, setting: Setting, ddl: Ddl
) -> None:
    """By the file and by what of the task gave it; it is the task that is wrong, so exit code 2."""
    file = setting.folder / "task.py"
    assert old in TRAINABLE
    file.write_text(TRAINABLE.replace(old, new))
    told = ddl(*setting.arguments("learner join {run} --id x --task"), str(file))
    assert (told.code, f"{file}: {sentence}" in told.err) == (2, True), told
    assert "--debug" not in told.err, "there is no traceback that would tell more"


def test_rubbish_from_a_measure_is_named(setting: Setting, ddl: Ddl) -> None:
    """`evaluate` must give numbers by name."""
    file = setting.folder / "task.py"
    for text, shown in (("'good'", "'good'"), ("{'loss': 'low'}", "{'loss': 'low'}")):
        file.write_text(TRAINABLE.replace('{"loss": 0.5}', text))
        told = ddl(*setting.arguments("evaluate {run} --task"), str(file))
        assert (told.code, f"{file}: `evaluate` returned {shown}" in told.err) == (2, True), told


def test_a_loop_of_ones_own_is_told_what_to_do(setting: Setting, tmp_path: Path) -> None:
    """Its error carries the cure, and another model has not joined."""
    names: dict[str, type] = {}
    exec(OTHER, names)
    before = setting.left()
    with pytest.raises(RefusedError, match=r"'first.weight' has shape .*\. Start the learner with"):
        Learner.join(setting.words["run"], model=names["Tiny"](5), id="x")
    assert setting.left() == before
    with closing(RedisLearner(setting.redis_url, RUN)) as registry:
        assert registry.read_entry() is not None


def test_all_impossible_values_are_told_at_once(setting: Setting, ddl: Ddl) -> None:
    """From flags as from a file; `--json` commands say it on stderr, too."""
    flags = ("--set", "round.quorum=0", "--set", "keep.versions=none", "--set", "outer.lrr=1")
    told = ddl("config", "show", setting.words["good"], "--json", *flags)
    assert told.code == 2
    assert told.out == ""
    lines = told.err.splitlines()
    assert lines[0] == "ddl: config: 3 settings cannot be used:"
    assert len(lines) == 4
    shown = ddl("config", "show", setting.words["good"], "--json")
    assert json.loads(shown.out)["settings"]["round"]["quorum"] == 1
