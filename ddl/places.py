"""What belongs to one machine: where `ddl` keeps things, and which processes are there."""

from __future__ import annotations

import os
import socket
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


def is_provably_gone(host: str, pid: int) -> bool:
    """Whether a process ran on this machine, by its own word, and does not exist any more."""
    if host != socket.gethostname() or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
