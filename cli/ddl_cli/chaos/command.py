"""`ddl chaos` from its folder to its report: a run without faults, then the same one under a tape."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import typer
from msgspec.structs import replace

from ddl.config import StoreSettings
from ddl.errors import DdlError
from ddl.protocol.wire import canonical
from ddl.simulate.tape import Tape, save_tape
from ddl_cli.chaos.schedule import tape_of
from ddl_cli.chaos.trial import perform
from ddl_cli.demo.bucket import Storage, storage
from ddl_cli.demo.cast import Play, data
from ddl_cli.demo.command import orderly_sigterm, say
from ddl_cli.units import short_time

if TYPE_CHECKING:
    from ddl_cli.chaos.measure import Measured
    from ddl_cli.chaos.report import Losses, Report

PAGE: Final = "index.html"
TAPE: Final = "tape.json"


@dataclass(frozen=True, kw_only=True)
class Options:
    """How chaos is made.

    Attributes:
        folder: holds all that it writes; exists.
        tape: what fails when; its learners and its length are those of the run.
        free_s: how long the run without faults is.
        settings: dotted key -> text, changes to the packaged run.toml.
        against_ddp: whether data-parallel training is put through the same.
        s3: whether objects go to S3 servers of its own, instead of directories.
        redis_url, store_url: services of somebody's, to use in place of its own.
    """

    folder: Path
    tape: Tape
    free_s: float
    settings: Mapping[str, str] = field(default_factory=dict)
    against_ddp: bool = False
    s3: bool = False
    redis_url: str | None = None
    store_url: str | None = None


class Site(NamedTuple):
    """Where one of the two runs is made."""

    folder: Path
    run: str
    place: Storage


@contextmanager
def _sites(options: Options) -> Iterator[tuple[Site, Site]]:
    """Of the run without faults, and of that with them, while the block runs."""
    names = ["chaos-free", "chaos"]
    if options.redis_url or options.store_url:  # where others have runs, too
        token = secrets.token_hex(4)
        names = [f"{name}-{token}" for name in names]
        say(f"{' and '.join(names)} are left there; `ddl rm` removes them")
    with ExitStack() as stack:
        made = []
        for name, folder in zip(names, ("without-faults", "chaos"), strict=True):
            where = options.folder / folder
            where.mkdir()
            made.append(Site(where, name, stack.enter_context(_place(options, where))))
        yield made[0], made[1]


def _place(options: Options, folder: Path) -> AbstractContextManager[Storage]:
    if options.store_url is None:
        return storage(folder, s3=options.s3)
    settings = StoreSettings(
        endpoint_url=options.settings.get("store.endpoint_url", ""),
        region=options.settings.get("store.region", ""),
    )
    return nullcontext(Storage(url=options.store_url, settings=settings))


def run_chaos(options: Options, *, as_json: bool) -> bool:
    """Do it, measure, report; whether all is as it must be. Raises: DdlError."""
    tape = options.tape
    save_tape(options.folder / TAPE, tape)
    say(f"chaos in {options.folder}: {tape.learners} real learners, real signals")
    with orderly_sigterm(), _sites(options) as (free_site, chaos_site):
        say(f"first {short_time(options.free_s)} without faults, to compare with")
        nothing = tape_of((), learners=tape.learners, horizon_s=options.free_s)
        free = _trial(options, free_site, nothing)
        if not free.num_steps:
            raise DdlError(
                f"no learner took a step in {short_time(options.free_s)} without faults",
                hint="Give them longer: --free-seconds 60",
            )
        faults = len(tape.faults)
        say(f"now {short_time(tape.horizon_s)} with {faults} faults")
        chaos = _trial(options, chaos_site, tape)
        losses = _losses(options.folder / "export", (chaos_site, chaos), (free_site, free))
    from ddl_cli.chaos.baseline import measure_ddp
    from ddl_cli.chaos.report import Report, judge, text

    report = Report(ddl=judge(chaos, free, losses, tape=tape), tape=tape)
    if options.against_ddp:
        args = chaos.books.run.settings.task.args
        folder = options.folder / "ddp"
        with orderly_sigterm():
            ddp = measure_ddp(folder, tape, args=args, free_s=options.free_s, say=say)
        report = replace(report, ddp=ddp)
    _write_page(options.folder, report, chaos, free)
    typer.echo(canonical(report) if as_json else text(report))
    for problem in report.ddl.problems:
        say(f"FAILED: {problem}")
    return not report.ddl.problems


def _write_page(folder: Path, report: Report, chaos: Measured, free: Measured) -> None:
    if find_spec("matplotlib") is None:
        say("no page is written: that needs matplotlib, in the extra `plot`")
        return
    from ddl_cli.chaos.page import render

    page = folder / PAGE
    page.write_text(render(report, chaos, free, written_at=time.time()), encoding="utf-8")
    say(f"with plots: {page}")


def _trial(options: Options, site: Site, tape: Tape) -> Measured:
    play = Play(
        folder=site.folder,
        files=data("run.toml", "chaos").parent,
        run=site.run,
        learners=tape.learners,
        settings={**options.settings, "run.name": site.run},
    )
    course = perform(play, site.place, tape, say, redis_url=options.redis_url)
    # brings in torch, which nobody needs before
    from ddl_cli.chaos.measure import measure

    names = [f"learner-{number}" for number in range(1, tape.learners + 1)]
    with closing(site.place.open()) as store:
        return measure(site.folder, store, site.run, course, names)


def _losses(out: Path, chaos: tuple[Site, Measured], free: tuple[Site, Measured]) -> Losses | None:
    """Held-out losses after as many merged tokens as both runs have; None if one has no version."""
    from ddl.coordinator.evaluate import evaluate_file
    from ddl.coordinator.export import export_model
    from ddl_cli.chaos.report import Losses

    tokens = min(run.story.progress for _, run in (chaos, free))
    found = []
    for site, run in (chaos, free):
        version = max((s.version for s in run.story.steps if s.progress <= tokens), default=0)
        if not version:
            return None
        with closing(site.place.open()) as store:
            file = Path(export_model(store, site.run, out, at=version).path)
        task_file, settings = data("task.py", "chaos"), run.books.run.settings
        found.append(evaluate_file(file, task_file=task_file, settings=settings)["loss"])
    return Losses(tokens=tokens, chaos=found[0], failure_free=found[1])
