"""`ddl verify`: is everything in the store as the log says?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ddl.errors import RegistryError
from ddl.names import counted
from ddl_cli.exits import Exit
from ddl_cli.resolve import Place, RedisOption, RunArgument, StoreOption, resolve
from ddl_cli.units import short_number

if TYPE_CHECKING:
    from ddl.coordinator.verify import ReplayResult, Verification
    from ddl.protocol.records import Head, LedgerTotals


def verify(
    run: RunArgument,
    replay: Annotated[
        bool,
        typer.Option(
            "--replay",
            help="Also merge the kept contributions again: they must give the same bytes. "
            'With keep.contributions = "all" that is every merge from the oldest kept version on.',
        ),
    ] = False,
    redis: RedisOption = None,
    store: StoreOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object (Verification).")
    ] = False,
) -> None:
    """Check a run as it lies in the store: its log, its ledger, and every object.

    The run may be going on meanwhile. Exit code 6 if anything is not as it should be.
    """
    place = resolve(run, redis=redis, store=store)
    head, outstanding = _in_redis(place)
    from ddl.coordinator.verify import verify_run
    from ddl.protocol.wire import canonical
    from ddl_cli.progress import bars

    opened = place.find_store()
    try:
        with bars() as tick:
            found = verify_run(opened, place.run, replay=replay, head=head, tick=tick)
    finally:
        opened.close()
    typer.echo(canonical(found) if as_json else text(found, outstanding=outstanding))
    if found.num_differences:
        raise typer.Exit(Exit.INTEGRITY)


def text(found: Verification, *, outstanding: float = 0.0) -> str:
    """What was looked at, and every difference that is told.

    `outstanding`: tokens announced in Redis that have no receipt, and so no place in the log.
    """
    from ddl.core.log import CHECKPOINT_EVERY

    gone = f"; {found.num_gone} more are not kept any more" if found.num_gone else ""
    lines = [
        f"{found.run}, lineage {found.lineage[:8]}, version {found.global_version}",
        f"  log          {found.num_records} records with {found.num_receipts} receipts",
        f"  ledger       {_fates(found.ledger, found.progress)}{_waiting(outstanding)}",
        f"  checkpoints  {found.num_checkpoints} (the log has one every {CHECKPOINT_EVERY} records)",
        f"  versions     {found.num_objects} objects, {short_number(found.objects_bytes)}B{gone}",
        f"  merged       {found.num_contributions} contributions are kept, "
        f"{short_number(found.contributions_bytes)}B",
    ]
    if found.replay is not None:
        replay = found.replay
        outcome = "same bytes" if replay.num_equal else "nothing of them is kept"
        lines.append(f"  replay       {replay.num_equal} of {replay.num_steps} steps, {outcome}")
        lines += [f"    record {row.seq} not replayed: {row.why}" for row in replay.skipped]
        further = replay.num_skipped - replay.num_not_kept - len(replay.skipped)
        if further:
            lines.append(f"    and {further} more not replayed")
        if replay.num_not_kept:
            steps = counted(replay.num_not_kept, "step")
            lines.append(
                f"    {steps} not replayed: the version before or a contribution is not kept "
                "(see keep.versions, keep.every, keep.contributions)"
            )
    lines += [f"  WRONG  {row.where}: {row.what}" for row in found.differences]
    if found.num_differences > len(found.differences):
        lines.append(f"  and {found.num_differences - len(found.differences)} more differences")
    differences = counted(found.num_differences, "difference")
    lines.append(differences if found.num_differences else _all_is_well(found.replay))
    return "\n".join(lines)


def _all_is_well(replay: ReplayResult | None) -> str:
    """How much that is worth: merges that were not done again may be wrong in themselves."""
    well = "everything is as the log says"
    if replay is None:
        return well
    if replay.num_equal == replay.num_steps:
        return f"{well}, and all {counted(replay.num_steps, 'merge')} give the same bytes again"
    cure = ' (keep.contributions = "all" keeps what it takes)' if replay.num_not_kept else ""
    merges = counted(replay.num_steps, "merge")
    return f"{well}; no more than {replay.num_equal} of {merges} could be done again{cure}"


def _fates(ledger: LedgerTotals, progress: float) -> str:
    """What has become of the tokens that have a receipt, as receipts and ledger say alike."""
    from ddl.core.snapshot import outcomes
    from ddl.protocol.records import FATES

    tokens = outcomes({fate: getattr(ledger, fate) for fate in FATES}, progress)
    told = ", ".join(f"{round(num):,} {word}" for word, num in tokens.items() if round(num))
    return f"{round(ledger.handed_in):,} tokens have a receipt" + (told and f": {told}")


def _waiting(outstanding: float) -> str:
    """Why `ddl status` says that more was handed in."""
    if not outstanding:
        return ""
    return f"; {round(outstanding):,} more have none yet (`ddl status` calls them outstanding)"


def _in_redis(place: Place) -> tuple[Head | None, float]:
    """The newest record as Redis shows it, if one is named and answers: a log can be checked
    against itself alone, but for its last record. And how many tokens wait there for a receipt."""
    if place.redis_url is None:
        return None, 0.0
    from ddl.core.snapshot import snapshot

    registry = place.reader()
    try:
        view = registry.view(num_facts=0)
        shown = snapshot(view)
        return view.head, shown.ledger.outstanding if shown else 0.0
    except RegistryError as error:
        if place.store_url is None:
            raise
        typer.echo(f"not compared with Redis: {error}", err=True)
        return None, 0.0
    finally:
        registry.close()
