"""`ddl demo`: see it work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from ddl import config
from ddl_cli.arguments import key_values
from ddl_cli.exits import Exit

COMMITS_LEAST: Final = 40
"""In fewer, a learner that joins when half of them are made has no time to hand in."""


def demo(
    learners: Annotated[
        int, typer.Option(metavar="N", min=1, help="Learners that are there from the beginning.")
    ] = 3,
    commits: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Versions to make; by default about two minutes' worth."
        ),
    ] = None,
    kill: Annotated[
        bool, typer.Option("--kill/--no-kill", help="Kill one learner on the way.")
    ] = True,
    loss_below: Annotated[
        float,
        typer.Option(metavar="X", help="Fail unless the last version's held-out loss is below."),
    ] = 2.6,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, as round.quorum=2."),
    ] = None,
    s3: Annotated[
        bool,
        typer.Option("--s3", help="Keep objects in an S3 server (extra s3-local), not a folder."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="End with one JSON document on standard output.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--dir", metavar="DIR", help="Where to write; by default a new folder demo-... here."
        ),
    ] = None,
) -> None:
    """Train a small language model with several learner processes on this machine.

    One learner is killed on the way and another one joins late. At the end the
    model is measured, the books are checked, and no process is left.
    """
    if kill and learners < 2:
        raise typer.BadParameter(
            "with --kill there must be at least 2 learners", param_hint="--learners"
        )
    if commits is not None and commits < COMMITS_LEAST:
        raise typer.BadParameter(
            f"{commits} versions are over before the learner that joins late has imported torch; "
            f"use {COMMITS_LEAST} or more",
            param_hint="--commits",
        )
    settings = key_values(changes or [], option="--set")
    from ddl_cli.demo.cast import Options, data
    from ddl_cli.demo.command import new_folder, run_demo

    config.load(data("run.toml"), environment={}, flags=settings)  # refused before anything is made
    options = Options(
        folder=new_folder(folder),
        learners=learners,
        commits=commits,
        kill=kill,
        settings=settings,
        s3=s3,
    )
    good = run_demo(options, loss_below=loss_below, as_json=as_json)
    raise typer.Exit(Exit.OK if good else Exit.FAILED)
