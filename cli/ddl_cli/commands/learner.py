"""`ddl learner`: take part in a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ddl.errors import ConfigError
from ddl.learner.departure import Departed, Departure
from ddl.limits import JOIN_WAIT_S
from ddl.protocol.address import parse_address
from ddl_cli.arguments import LogOption, MetricsPortOption, key_values, scalar
from ddl_cli.asking import FormerWhyOption, TimeoutOption, ask
from ddl_cli.exits import Exit
from ddl_cli.logs import open_log
from ddl_cli.resolve import RedisOption, RunArgument, resolve

if TYPE_CHECKING:
    from ddl.protocol.records import RequestKind

app = typer.Typer(help="Take part in a run, or send a learner away.", no_args_is_help=True)

LearnerArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The learner.", show_default=False)
]
LearnerWhyOption = Annotated[
    str, typer.Option("--why", metavar="TEXT", help="The reason; the learner is told.")
]

_EXITS: Final = {
    "ended": Exit.OK,
    "max_steps": Exit.OK,
    "drained": Exit.START_AGAIN,
    "offline": Exit.START_AGAIN,
}


@app.callback()
def _group() -> None:
    """Take part in a run, or send a learner away."""


@app.command("join")
def join(
    address: Annotated[
        str,
        typer.Argument(
            metavar="ADDRESS",
            help="redis://HOST:PORT/DB?run=NAME, NAME, or the run.toml where that is at hand.",
            show_default=False,
        ),
    ],
    task: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Task file: defines build(ctx); else the one that the run.toml names.",
            show_default=False,
        ),
    ] = None,
    redis: RedisOption = None,
    learner: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="Who this is; by default made from the host name."),
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="An argument of the task, on this machine."),
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu or cuda:N.")] = "auto",
    threads: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Threads of one operation of torch.")
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Leave after this many steps.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The run's store as this machine reaches it."),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            metavar="S",
            min=0,
            help="Seconds to wait for a run, or its Redis, that is not started yet; 10 at most "
            "for a run that is over to be started again.",
        ),
    ] = JOIN_WAIT_S,
    takeover: Annotated[
        bool, typer.Option("--takeover", help="Replace a living process of the same id.")
    ] = False,
    up_mbit: Annotated[
        float | None, typer.Option(metavar="X", help="Cap on uploads, in Mbit/s.")
    ] = None,
    down_mbit: Annotated[
        float | None, typer.Option(metavar="X", help="Cap on downloads, in Mbit/s.")
    ] = None,
    metrics_port: MetricsPortOption = None,
    log: LogOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Log as one JSON object a line.")] = False,
) -> None:
    """Join a run as a learner, and train until it ends.

    It may be started before Redis and the run's coordinator, and waits for them then (--wait).
    Ctrl-C leaves at once; SIGTERM hands in what is done and leaves (exit code 75).
    """
    args = {k: scalar(v) for k, v in key_values(arg or [], option="--arg").items()}
    if parse_address(address).toml_path is not None:
        place = resolve(address, redis=redis)
        address, redis, task = place.run, place.redis_url, task or place.task_file
    if task is None:
        raise ConfigError(
            "no task file is named, and an address tells none",
            hint="Give --task FILE: the file that defines build(ctx)",
        )
    try:
        with Departure() as departure:  # before torch is imported, which takes seconds
            from ddl.learner.run import TaskOptions, run_task
            from ddl.learner.session import JoinOptions

            ended = run_task(
                JoinOptions(
                    address=address,
                    redis=redis,
                    learner=learner,
                    store=store,
                    takeover=takeover,
                    wait_s=wait,
                    up_mbit=up_mbit,
                    down_mbit=down_mbit,
                    journal=open_log(as_json=as_json),
                ),
                TaskOptions(
                    task=task,
                    args=args,
                    device=device,
                    threads=threads,
                    max_steps=max_steps,
                    metrics_port=metrics_port,
                    log=tuple(log or ()),
                ),
                departure,
            )
    except Departed:
        raise typer.Exit(Exit.START_AGAIN) from None
    raise typer.Exit(_EXITS[ended])


@app.command("drain")
def drain(
    run: RunArgument,
    learner: LearnerArgument,
    redis: RedisOption = None,
    why: LearnerWhyOption = "",
    reason: FormerWhyOption = "",
    timeout: TimeoutOption = 60.0,
) -> None:
    """Have a learner hand in what it has and leave; it may come back."""
    _send(run, "drain", learner, redis=redis, why=why or reason, timeout_s=timeout)
    typer.echo(f"{learner} is to hand in and leave")


@app.command("kick")
def kick(
    run: RunArgument,
    learner: LearnerArgument,
    redis: RedisOption = None,
    why: LearnerWhyOption = "",
    reason: FormerWhyOption = "",
    timeout: TimeoutOption = 60.0,
) -> None:
    """Send a learner away, and merge nothing of it until it is allowed again."""
    _send(run, "kick", learner, redis=redis, why=why or reason, timeout_s=timeout)
    place = resolve(run, redis=redis).typed
    typer.echo(f"{learner} is kicked; `ddl learner allow {place} {learner}` lets it in again")


@app.command("allow")
def allow(
    run: RunArgument,
    learner: LearnerArgument,
    redis: RedisOption = None,
    why: LearnerWhyOption = "",
    reason: FormerWhyOption = "",
    timeout: TimeoutOption = 60.0,
) -> None:
    """Let a learner in again that was kicked."""
    _send(run, "allow", learner, redis=redis, why=why or reason, timeout_s=timeout)
    typer.echo(f"{learner} may join again")


def _send(
    run: str, kind: RequestKind, learner: str, *, redis: str | None, why: str, timeout_s: float
) -> None:
    from ddl.protocol.records import Request

    wish = Request(id="", kind=kind, who="", why=why, learner=learner)
    ask(resolve(run, redis=redis), wish, timeout_s=timeout_s)
