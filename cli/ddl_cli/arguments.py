"""What options hold: KEY=VALUE, values, counts; and options that several commands have."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import Annotated

import typer

from ddl.config import Scalar
from ddl.errors import ConfigError
from ddl.names import read_count

MetricsPortOption = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        metavar="PORT",
        min=0,
        max=65535,
        help="Serve /metrics for Prometheus on this port, 0: a free one.",
    ),
]

LogOption = Annotated[
    list[str] | None,
    typer.Option(
        "--log",
        metavar="WHERE",
        help="Write curves to tensorboard:DIR or wandb:PROJECT; may be given for both.",
    ),
]


def key_values(texts: Iterable[str], *, option: str) -> dict[str, str]:
    """The pairs of a repeated option such as `--set`; a later one replaces an earlier one.

    Raises: ConfigError that names the option and the text without a "=".
    """
    pairs = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise ConfigError(
                f"{option} {text!r} is not KEY=VALUE",
                hint=f"Write {key.strip() or 'KEY'}=VALUE in one piece, without blanks",
            )
        pairs[key.strip()] = value.strip()
    return pairs


def scalar(text: str) -> Scalar:
    """A value as `run.toml` would read it: true, 3, 0.5, "quoted"; anything else is text."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, bool | int | float | str) else text


def count(text: str, *, option: str) -> int:
    """A count as people write it: 124M, 1.3B, 7000. Raises: ConfigError: it is none, or below 1."""
    number = read_count(text)
    if number is None or number < 1:
        raise ConfigError(f"{option} {text!r} is not a count", hint="Use 124M, 1.3B or 7000000")
    return number
