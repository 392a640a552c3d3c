"""`python -m ddl.sim swarm --seeds N [--json]`, and `python -m ddl.sim replay SEED`."""

from __future__ import annotations

import argparse
import sys

from ddl.protocol.wire import canonical
from ddl.sim.swarm import Report, swarm
from ddl.sim.trace import Trace
from ddl.sim.world import Outcome, simulate


def main() -> int:
    """The exit code: 1 if something did not hold."""
    arguments = _parser().parse_args()
    if arguments.command == "replay":
        outcome = simulate(arguments.seed, Trace(sys.stdout))
        sys.stdout.write(f"\n{_describe(outcome)}\n")
        return bool(outcome.violation)
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    report = swarm(seeds, processes=arguments.processes, note=_Progress(len(seeds)).note)
    if arguments.json:
        sys.stdout.write(canonical(report).decode() + "\n")
    else:
        _print(report)
    return bool(report.violations)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ddl.sim", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    many = commands.add_parser("swarm", help="many histories")
    many.add_argument("--seeds", type=int, default=300, help="how many (default: 300)")
    many.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    many.add_argument("--processes", type=int, help="how many at once (default: one a core)")
    many.add_argument("--json", action="store_true", help="print the report as JSON")
    one = commands.add_parser("replay", help="one history, with its trace")
    one.add_argument("seed", type=int)
    return parser


class _Progress:
    """Says on stderr how far it is, and at once what did not hold."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0

    def note(self, outcome: Outcome) -> None:
        self._done += 1
        if outcome.violation:
            sys.stderr.write(f"{_describe(outcome)}\n")
        elif self._done % 100 == 0:
            sys.stderr.write(f"{self._done} of {self._total} seeds\n")


def _describe(outcome: Outcome) -> str:
    what = f"broken: {outcome.violation}" if outcome.violation else "all held"
    return (
        f"seed {outcome.seed}: {outcome.events} events, {outcome.commits} commits, "
        f"{outcome.faults} faults; {what}"
    )


def _print(report: Report) -> None:
    means = ", ".join(f"{report.mean(w):,.1f} {w}" for w in ("events", "commits", "faults"))
    sys.stdout.write(
        f"{report.seeds} seeds in {report.seconds} s, on average {means}; "
        f"{len(report.violations)} violations\n"
    )
    for violation in report.violations:
        sys.stdout.write(f"  just sim {violation.seed}: {violation.text}\n")


if __name__ == "__main__":
    sys.exit(main())
