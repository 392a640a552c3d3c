"""What runs and learners may be called (safe in object keys, Redis keys and URLs alike), and how
numbers of things are."""

from __future__ import annotations

import re
from decimal import Decimal

from ddl.errors import ConfigError

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,47}")
_LEARNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMgGbBtT]?)")
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}


def check_run_name(name: str) -> str:
    """Return `name` if it can name a run. Raises: ConfigError."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"run name {name!r} is not usable",
            hint="Use 1 to 48 of a-z, 0-9 and '-', starting with a letter or digit",
        )
    return name


def check_learner_id(learner: str) -> str:
    """Return `learner` if it can name a learner. Raises: ConfigError."""
    if not _LEARNER.fullmatch(learner):
        raise ConfigError(
            f"learner id {learner!r} is not usable",
            hint="Use 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-', starting with a letter or digit",
        )
    return learner


def counted(num: int, noun: str) -> str:
    """`1 step`, `2 steps`, `1,000 steps`."""
    return f"{num:,} {noun}" if num == 1 else f"{num:,} {noun}s"


def read_count(text: str) -> int | None:
    """A whole number as people write it: 40M, 1.3B, 7000, 10_000; None if it is none."""
    match = _COUNT.fullmatch(text.strip().replace("_", ""))
    if match is None:
        return None
    number = Decimal(match[1]) * _FACTORS[match[2].lower()]
    return int(number) if number == int(number) else None
