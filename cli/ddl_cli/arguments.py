"""Options of the form KEY=VALUE."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable

from ddl.config import Scalar
from ddl.errors import ConfigError


def key_values(texts: Iterable[str], *, option: str) -> dict[str, str]:
    """The pairs of a repeated option such as `--set`; a later one replaces an earlier one.

    Raises: ConfigError that names the option and the text without a "=".
    """
    pairs = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise ConfigError(f"{option} {text!r} is not KEY=VALUE")
        pairs[key.strip()] = value.strip()
    return pairs


def scalar(text: str) -> Scalar:
    """A value as `run.toml` would read it: true, 3, 0.5, "quoted"; anything else is text."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, bool | int | float | str) else text
