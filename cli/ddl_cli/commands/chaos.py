"""`ddl chaos`: real faults on a real run on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from ddl.errors import ConfigError
from ddl_cli.arguments import key_values
from ddl_cli.chaos.schedule import Odds, check, cut_short, draw, parse_fault, tape_of
from ddl_cli.exits import Exit

LEARNERS: Final = 8
SECONDS: Final = 90.0
ODDS: Final = Odds()


def chaos(
    learners: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help=f"Learners; {LEARNERS} unless a tape says."),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="S", min=1, help=f"Length under faults; {SECONDS:g} unless a tape says."
        ),
    ] = None,
    free_seconds: Annotated[
        float, typer.Option(metavar="S", min=1, help="Length of the run without faults before it.")
    ] = 45.0,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Another one draws other faults; 0.")
    ] = None,
    mtbf: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            min=0.1,
            help=f"Mean seconds between two faults of a learner; {ODDS.mtbf_s:g}.",
        ),
    ] = None,
    away: Annotated[
        float | None,
        typer.Option(
            metavar="S", min=0, help=f"Seconds until a learner comes back; {ODDS.down_s:g}."
        ),
    ] = None,
    coordinator_kills: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help=f"How often the coordinator is killed; {ODDS.services['kill-coordinator']}.",
        ),
    ] = None,
    tape: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Play these faults, in place of drawn ones."),
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TIME:KIND[:LEARNER][:S]",
            help="Only these, such as 30:kill:2:5 or 40:flush-redis; may be repeated.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="ddp", help="Put data-parallel training under torchrun through it, too."
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, as round.quorum=2."),
    ] = None,
    s3: Annotated[
        bool,
        typer.Option("--s3", help="Keep objects in S3 servers (extra s3-local), not folders."),
    ] = False,
    redis: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Use this Redis, which then does not fail itself."),
    ] = None,
    store: Annotated[str | None, typer.Option(metavar="URL", help="Use this object store.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object (Report).")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--dir", metavar="DIR", help="Where to write; by default a new folder chaos-... here."
        ),
    ] = None,
) -> None:
    """Let processes of a real run die, and see what it costs.

    Learners are killed, stopped, slowed, cut off and their uploads damaged; the
    coordinator is killed; Redis is killed and emptied. The same fleet runs without faults first, to
    compare with. Learners train a small model on simulated accelerators, so that two cores carry them;
    --against ddp has the same model, data and steps restart from checkpoints.
    """
    from ddl.simulate.tape import load_tape

    if against not in (None, "ddp"):
        raise ConfigError(f"--against {against!r} is unknown", hint="There is --against ddp")
    settings = key_values(changes or [], option="--set")
    count, horizon_s = learners or LEARNERS, seconds or SECONDS
    if s3 and store:
        raise ConfigError("--s3 and --store both say where objects go", hint="Leave one out")
    if tape and fault:
        raise ConfigError("--tape and --fault both say what fails", hint="Leave one out")
    drawn = {"--seed": seed, "--mtbf": mtbf, "--away": away}
    drawn["--coordinator-kills"] = coordinator_kills
    given = [option for option, value in drawn.items() if value is not None]
    if given and (tape or fault):
        raise ConfigError(
            f"{given[0]} is about faults that are drawn, and {'--tape' if tape else '--fault'} "
            "says which there are",
            hint="Leave one out",
        )
    if tape:
        played = load_tape(tape)
        if learners not in (None, played.learners):
            raise ConfigError(
                f"the tape is of {played.learners} learners, not of {learners}",
                hint="Leave --learners out",
            )
        played = cut_short(played, seconds or played.horizon_s)
    elif fault:
        played = tape_of(map(parse_fault, fault), learners=count, horizon_s=horizon_s)
    else:
        odds = replace(
            ODDS,
            mtbf_s=ODDS.mtbf_s if mtbf is None else mtbf,
            down_s=ODDS.down_s if away is None else away,
        )
        if coordinator_kills is not None:
            odds = odds.with_coordinator_kills(coordinator_kills)
        odds = odds.without_redis() if redis else odds
        played = draw(odds, learners=count, horizon_s=horizon_s, seed=seed or 0)
    check(played, own_redis=redis is None)
    from ddl_cli.chaos.command import Options, run_chaos
    from ddl_cli.demo.command import new_folder

    options = Options(
        folder=new_folder(folder, prefix="chaos-"),
        tape=played,
        free_s=free_seconds,
        settings=settings,
        against_ddp=against is not None,
        s3=s3,
        redis_url=redis,
        store_url=store,
    )
    good = run_chaos(options, as_json=as_json)
    raise typer.Exit(Exit.OK if good else Exit.FAILED)
