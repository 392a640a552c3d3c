"""What a terminal, a pipe or a file can show."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from rich.console import Console

from ddl_cli.view.text import Canvas

LEAST_WIDTH: Final = 20
"""Narrower windows are drawn as if they had so many columns."""


def canvas(console: Console) -> Canvas:
    """As wide as the window, or as COLUMNS says; without end where there is neither."""
    is_known = console.is_terminal or os.environ.get("COLUMNS", "").isdecimal()
    width = max(console.width, LEAST_WIDTH) if is_known else None
    return Canvas(width, ascii=not speaks_unicode(console.encoding, os.environ))


def is_screen(console: Console) -> bool:
    """Whether pictures can be redrawn there."""
    return console.is_terminal and not console.is_dumb_terminal


def speaks_unicode(encoding: str, environment: Mapping[str, str]) -> bool:
    """Whether bars and the like can be shown: by the encoding, and by the locale of the user.

    Python writes UTF-8 in the C locale, too (it sets LC_CTYPE to C.UTF-8 then), but that does not
    make the terminal understand it.
    """
    ctype = environment.get("LC_CTYPE", "")
    asked = environment.get("LC_ALL") or (ctype if ctype != "C.UTF-8" else "")
    if (asked or environment.get("LANG", "")) in ("", "C", "POSIX"):
        return False
    try:
        "\u2581\u2588".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
