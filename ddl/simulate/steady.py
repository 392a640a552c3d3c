"""What one learner of equal machines settles at, without drawing lots: a check on `life`, and its fit.

Per step of s seconds, lambda = failures per second while it steps, fails with probability
p = 1 - exp(-lambda s), and after each step there is a pause for failures and one for returns:

* not elastic, with spares: uptime = s / (s + p * restart);
* elastic: uptime = s / (s + p * down + r * up), where r is the probability that any slice has come back
  since it was last looked for. Slices come back as often as they fail, at random; r, and the slices that
  are missing on average, depend on the uptime and it on them, so they are found by iteration.
"""

from __future__ import annotations

import math
from typing import Final

from ddl.simulate.paper import Figures
from ddl.simulate.settings import Machines, Times

_CLOSE: Final = 1e-9


def rigid(machines: Machines, times: Times, *, size: float) -> Figures:
    """Of a learner that is not elastic, with spares. `size`: times the machines."""
    rate = size * machines.chips / machines.mtbi_s
    fails = -math.expm1(-rate * times.step_s)
    uptime = 100 * times.step_s / (times.step_s + fails * times.restart_s)
    return Figures(uptime, uptime)


def elastic(machines: Machines, times: Times, *, size: float, away_s: float) -> Figures:
    """Of an elastic learner. `away_s`: how long a failed slice is away on average."""
    s, down_s, up_s = times.step_s, times.down_s, times.up_s
    whole = size * machines.chips / machines.mtbi_s
    returned, uptime, missing, before = 0.0, 1.0, 0.0, 0.0
    while abs(uptime - before) > _CLOSE:
        missing = machines.slice_chips * away_s / machines.mtbi_s * uptime
        rate = whole * (1 - missing)
        fails = -math.expm1(-rate * s)
        comes = rate * uptime  # per second of all time
        none_while_down = 1 - fails + fails * math.exp(-comes * down_s)
        none_while_up = 1 - returned + returned * math.exp(-comes * up_s)
        returned = 1 - math.exp(-comes * s) * none_while_down * none_while_up
        # halfway, or it would swing around the answer
        before, uptime = uptime, (uptime + s / (s + fails * down_s + returned * up_s)) / 2
    return Figures(100 * uptime * (1 - missing), 100 * uptime)
