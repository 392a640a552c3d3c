"""`ddl plan`: what a run would need, before it is begun."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from ddl import config
from ddl.config import Loaded, Settings
from ddl.errors import ConfigError
from ddl.names import counted
from ddl.plan import UTILISATIONS, Link, Plan, Prices, Situation, SlowLink
from ddl.plan import plan as make_plan
from ddl.protocol.sizes import default_num_fragments
from ddl.protocol.wire import canonical
from ddl_cli.arguments import count, key_values
from ddl_cli.units import short_number, short_time

_LEAST = 1e-9
_ABOUT: Final = 1.1
"""Two times that differ by a smaller factor are told as one."""

_LINKS: Final[dict[Link, tuple[str, str]]] = {
    "learner_up": ("each learner's upload", "--up-mbit"),
    "learner_down": ("each learner's download", "--down-mbit"),
    "coordinator_down": ("the coordinator's fetching of all hand-ins", "--coordinator-mbit"),
    "coordinator_up": ("the coordinator's merging and publishing", "--coordinator-mbit"),
}
"""What it does in a round, and the option that says how fast it is."""


def plan(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN.toml]", help="A settings file.", show_default=False),
    ] = None,
    parameters: Annotated[
        str | None,
        typer.Option(metavar="COUNT", help="Of the model, such as 124M or 1.3B."),
    ] = None,
    task: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Build its model and count; else, without --parameters, that of RUN.toml.",
            show_default=False,
        ),
    ] = None,
    learners: Annotated[
        int, typer.Option(metavar="N", min=1, help="That train at the same time.")
    ] = 8,
    step_s: Annotated[
        float, typer.Option(metavar="X", min=_LEAST, help="Seconds of a learner's step.")
    ] = 1.0,
    up_mbit: Annotated[
        float,
        typer.Option(metavar="X", min=_LEAST, help="Of each learner, in million bits per second."),
    ] = 100.0,
    down_mbit: Annotated[
        float, typer.Option(metavar="X", min=_LEAST, help="The same, down.")
    ] = 100.0,
    coordinator_mbit: Annotated[
        float, typer.Option(metavar="X", min=_LEAST, help="Of the coordinator, in each direction.")
    ] = 1000.0,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Such as codec.up=int4; may be repeated."),
    ] = None,
    price_per_1000_puts: Annotated[
        float, typer.Option(metavar="X", min=0.0, help="Of the object store; lists count as puts.")
    ] = 0.0,
    price_per_1000_gets: Annotated[
        float, typer.Option(metavar="X", min=0.0, help="Of the store.")
    ] = 0.0,
    price_per_gb_read: Annotated[
        float, typer.Option(metavar="X", min=0.0, help="Leaving the store.")
    ] = 0.0,
    price_per_gb_month: Annotated[
        float, typer.Option(metavar="X", min=0.0, help="Lying in it.")
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object (Plan).")] = False,
) -> None:
    """Tell what a run would need: bytes, bandwidth, time, memory, requests and their price.

    Settings come from RUN.toml, the environment and --set, as they do for a coordinator. Nothing is
    connected to.
    """
    loaded = config.load(
        file, environment=os.environ, flags=key_values(changes or [], option="--set")
    )
    situation = Situation(
        fragments=_fragments(loaded, file, parameters, task),
        learners=learners,
        step_s=step_s,
        up_bytes_per_s=up_mbit * 1e6 / 8,
        down_bytes_per_s=down_mbit * 1e6 / 8,
        coordinator_bytes_per_s=coordinator_mbit * 1e6 / 8,
        settings=loaded.settings,
        prices=Prices(
            per_1000_puts=price_per_1000_puts,
            per_1000_gets=price_per_1000_gets,
            per_gb_read=price_per_gb_read,
            per_gb_month=price_per_gb_month,
        ),
    )
    made = make_plan(situation)
    typer.echo(canonical(made) if as_json else "\n".join(_lines(made, situation)))


def _fragments(
    loaded: Loaded, file: Path | None, parameters: str | None, task: Path | None
) -> tuple[int, ...]:
    """Elements in each fragment: of the model that the task builds, or equal parts of a count."""
    if parameters is not None and task is not None:
        raise ConfigError(
            "the model's size is said twice", hint="Give --parameters 1.3B, or --task FILE"
        )
    if parameters is not None:
        return _equal_parts(count(parameters, option="--parameters"), loaded.settings)
    if task is None:
        if file is None:
            raise ConfigError(
                "the size of the model is not known",
                hint="Give RUN.toml, --parameters 1.3B, or --task FILE",
            )
        task = file.parent / loaded.settings.task.file
    from ddl.coordinator.genesis import build_model

    _, layout = build_model(loaded.settings, task)
    return tuple(
        sum(spec.numel for spec in specs if spec.kind == "parameter")
        for specs in layout.by_fragment
    )


def _equal_parts(elements: int, settings: Settings) -> tuple[int, ...]:
    every_steps = settings.round.every_steps
    num = settings.fragments.num or default_num_fragments(4 * elements, elements, every_steps)
    if num > elements:
        raise ConfigError(f"a model of {elements} parameters has no {num} fragments")
    return tuple(elements // num + (index < elements % num) for index in range(num))


# ---- for people ---------------------------------------------------------------------------------


def _lines(made: Plan, situation: Situation) -> Iterator[str]:
    traffic, hand_in, memory, storage = made.traffic, made.hand_in, made.memory, made.storage
    yield (
        f"{short_number(made.parameters)} parameters in {counted(made.num_fragments, 'fragment')}, "
        f"{made.learners} learners; up {made.up}, down {made.down}"
    )
    yield (
        f"a round every {short_time(made.round_every_s)}, each fragment every {made.every_steps} steps, "
        f"at {short_time(situation.step_s)} a step (--step-s)"
    )
    yield (
        f"links: {_rate(situation.up_bytes_per_s)} up (--up-mbit) and "
        f"{_rate(situation.down_bytes_per_s)} down (--down-mbit) a learner, "
        f"{_rate(situation.coordinator_bytes_per_s)} the coordinator (--coordinator-mbit)"
    )
    yield from _slowness(made)
    if made.early_steps:
        yield (
            f"more often in the first {made.early_steps} steps, as far as links bear it "
            '(outer.preset = "auto")'
        )
    yield ""
    yield from _table(
        "Bytes, with rounds as often as asked for" if made.pace.slow else "Bytes",
        ("up, each hand-in", _size(traffic.up_bytes)),
        ("down, each version", _size(traffic.down_bytes)),
        ("each learner", f"{_size(traffic.learner_bytes_per_day)} a day"),
        (
            "the coordinator's link",
            f"{_rate(traffic.coordinator_down_bytes_per_s)} down, "
            f"{_rate(traffic.coordinator_up_bytes_per_s)} up",
        ),
    )
    yield from _table(
        "From a snapshot to its adoption",
        ("encode", short_time(hand_in.encode_s)),
        ("upload", short_time(hand_in.up_s)),
        (
            "fetch, merge, publish",
            short_time(hand_in.fetch_s + hand_in.merge_s + hand_in.publish_s),
        ),
        ("download", short_time(hand_in.down_s)),
        ("in all", f"{short_time(hand_in.total_s)} = {hand_in.steps:.1f} steps; {_verdict(made)}"),
    )
    yield from _table(
        "Bandwidth of a learner's link, if it had to wait (it does not)",
        *(
            (f"{share:.0%} computing", _rate(row.bytes_per_s))
            for share, row in zip(UTILISATIONS, made.utilisation, strict=True)
        ),
    )
    yield from _table(
        "Memory beside the user's own",
        ("learner", f"{_size(memory.learner)}, {_size(memory.learner_aligning)} while it joins"),
        ("learner's disk", _size(memory.learner_disk)),
        ("coordinator", _size(memory.coordinator)),
    )
    price = f"; price {storage.price_per_day:.2f} a day" if storage.price_per_day else ""
    yield from _table(
        "Object store",
        (
            "requests",
            f"{short_number(storage.puts_per_day)} puts, "
            f"{short_number(storage.gets_per_day)} gets a day{price}",
        ),
        ("read", f"{_size(storage.read_bytes_per_day)} a day"),
        (
            "kept",
            f"{_size(storage.kept_bytes)}, and for good "
            f"{_size(storage.kept_for_good_bytes_per_day)} a day (keep.every, keep.contributions)",
        ),
    )


def _table(title: str, *rows: tuple[str, str]) -> Iterator[str]:
    yield title
    for name, value in rows:
        yield f"  {name:<24}{value}"


def _slowness(made: Plan) -> Iterator[str]:
    """Which links are too slow, how often rounds will come then, and what to change."""
    pace = made.pace
    if not pace.slow:
        return
    often = f"every {short_time(pace.most_s)}"
    if pace.least_s < pace.most_s / _ABOUT:
        often = (
            f"every {short_time(pace.least_s)} to {short_time(pace.most_s)}, the latter with every "
            "learner in all of them"
        )
    yield f"LINKS ARE TOO SLOW for that: rounds will come {often}"
    for slow in pace.slow:
        what, option = _LINKS[slow.link]
        yield f"  {what} takes {short_time(slow.round_s)} a round; {_cure(made, slow, option)}"
    yield f"  round.every_steps = {pace.every_steps} asks for no more than they bear"


def _cure(made: Plan, slow: SlowLink, option: str) -> str:
    if not slow.needed_bytes_per_s:
        return "no link is fast enough, for merging alone takes too long"
    fast = f"{_rate(slow.needed_bytes_per_s)} would do ({option})"
    if slow.link in ("learner_up", "coordinator_down") and made.up != "int4":
        return f"{fast}, or codec.up = int4"
    if slow.link == "learner_down" and made.down != "int4-step":
        return f"{fast}, or codec.down = int4-step"
    return fast


def _verdict(made: Plan) -> str:
    if made.hand_in.fits:
        return f"within tau = {made.overlap_steps}"
    return f"more than tau = {made.overlap_steps}: hand-ins come late and are carried"


def _size(num_bytes: float) -> str:
    return f"{short_number(num_bytes)}B"


def _rate(bytes_per_s: float) -> str:
    return f"{short_number(8 * bytes_per_s)}bit/s"
