"""What belongs to one machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from ddl.places import is_provably_gone, spool_root

HERE = socket.gethostname()


def test_only_a_process_of_this_machine_can_be_known_to_be_gone() -> None:
    """Not one that lives, not one of another machine, not one that never said its number."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    assert ended.wait() == 0
    assert is_provably_gone(HERE, ended.pid)
    assert not is_provably_gone("elsewhere", ended.pid)
    assert not is_provably_gone(HERE, os.getpid())
    assert not is_provably_gone(HERE, 1), "it may belong to somebody else"
    assert not is_provably_gone(HERE, 0)


def test_the_spool_lies_where_the_user_s_state_does() -> None:
    """DDL_SPOOL stands above XDG_STATE_HOME, and that above the home folder."""
    assert spool_root({"DDL_SPOOL": "/a", "XDG_STATE_HOME": "/b"}) == Path("/a")
    assert spool_root({"XDG_STATE_HOME": "/b"}) == Path("/b/ddl/spool")
    assert spool_root({}) == Path.home() / ".local/state/ddl/spool"
