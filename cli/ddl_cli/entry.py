"""The very first module of `ddl`: from here on signals mean something.

What a command needs takes tenths of a second to import, and seconds with torch. Ctrl-C and SIGTERM
in that time end the process as they do later: with the code that scripts and supervisors know, and
without a traceback. So nothing big may be imported here.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Final, NoReturn

INTERRUPTED: Final = 130
"""`ddl_cli.exits.Exit.INTERRUPTED`, which is not imported yet."""

TERMINATED: Final[dict[tuple[str, ...], int]] = {
    ("learner", "join"): os.EX_TEMPFAIL,
    ("coordinator", "start"): 0,
}
"""Exit codes of commands that SIGTERM ends in good order, also before they have begun."""


def main() -> NoReturn:
    """The `ddl` command. Ends the process with a code of `ddl_cli.exits`."""
    interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a handler's
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else whoever started us ...
        signal.signal(signal.SIGINT, interrupt)  # ... wants it ignored, as `nohup` and `&` do
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    if (code := TERMINATED.get(tuple(words[:2]))) is not None:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(code))
    try:
        from ddl_cli.app import main as run

        run()
    except BaseException as error:
        # a library that was interrupted while it was imported may raise anything
        if not interrupted or isinstance(error, SystemExit):
            raise
    sys.exit(INTERRUPTED if interrupted else 0)
