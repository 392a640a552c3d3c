"""Where `ddl` keeps what belongs to one machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def spool_root(environment: Mapping[str, str] | None = None) -> Path:
    """Where the spools of learners lie: `DDL_SPOOL`, else in the user's state folder."""
    environment = os.environ if environment is None else environment
    given = environment.get("DDL_SPOOL")
    if given:
        return Path(given)
    state = environment.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "ddl" / "spool"
