"""Whether this machine, its Redis, its store and its task file can take part in a run, found out by trying.

examine      every check, in order; each is made when its result is asked for
Target       what is looked at
Check        the outcome of one check: ok, warn or fail, what was seen, and the cure
"""

from ddl.doctor.check import Check, Status
from ddl.doctor.examine import Target, examine

__all__ = ["Check", "Status", "Target", "examine"]
