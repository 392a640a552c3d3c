"""A history as people read it: one line an event, in columns."""

from __future__ import annotations

from typing import Final, TextIO

from ddl.sim.clockwork import START

LEGEND: Final = """\
      at  virtual seconds since the beginning
     who  ada/2 learner/incarnation · one/3 coordinator/epoch · log what came into the store
          ! a fault · * the end of all faults
    what  of learners their own acts; of coordinators the facts that their core tells
 ada/2/f1/7  the seventh contribution of fragment 1 by ada's second incarnation
"""


class Trace:
    """Writes a history to a stream, legend first."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        stream.write(f"{LEGEND}\n{'at':>8}  {'who':<8}{'what':<22}\n")

    def __call__(self, at: float, who: str, what: str, text: str) -> None:
        self._stream.write(f"{at - START:8.3f}  {who:<8}{what:<22}{text}\n")
