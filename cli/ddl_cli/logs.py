"""The log of a process that works: where it goes, and in what form."""

from __future__ import annotations

import os
import sys

from ddl.journal import Form, Journal


def open_log(*, as_json: bool) -> Journal:
    """A journal on stderr: objects if asked for, coloured on a terminal, else plain lines."""
    form: Form = "json" if as_json else "colour" if _takes_colours() else "text"
    return Journal(sys.stderr, form=form)


def _takes_colours() -> bool:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stderr.isatty() and not plain
