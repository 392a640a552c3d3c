"""A new run that begins where another one was: same model and layout, a log of its own."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Final

from ddl import __version__, config
from ddl.codec.digest import sha256
from ddl.config import Scalar, Settings
from ddl.coordinator.history import History
from ddl.coordinator.payloads import Payloads
from ddl.core.log import LogState
from ddl.errors import ConfigError
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import ObjectRef, Record, RunRecord
from ddl.protocol.wire import SCHEMA, canonical
from ddl.store.base import Store

INHERITED: Final = {
    "run.name": "it is given by --as",
    "fragments.num": "a fork keeps the layout of its run",
    "merge.method": "it is part of the layout, which a fork keeps",
}
"""Settings that a fork cannot change, and why; nor any of [store] and [redis]."""


class Forked(Record, frozen=True, kw_only=True):
    """What `ddl fork --json` prints: the new run, and what it was made from."""

    schema: int = SCHEMA
    run: str
    lineage: str
    store: str
    source: str
    source_lineage: str
    source_version: int
    changes: dict[str, Scalar]
    """Settings that are not those of `source` at that version, but for the name."""


def fork_run(
    store: Store,
    source: str,
    name: str,
    *,
    at: int | None,
    changes: Mapping[str, Scalar],
    now: float,
    tick: Callable[[str, int, int], None] = lambda *_: None,
) -> Forked:
    """Create the run `name` from a version of the run `source`, in the same store.

    Version 0 of the new run are the published weights of that version; its momentum is zero. Its
    settings are those in force at that version, with `changes`. `run.json` is put last, so that a
    crash leaves no run; the same call can then be made again.

    Args:
        at: global version of `source`; None for the newest.
        changes: settings by dotted key.
        now: seconds since the epoch.
        tick: told of progress.
    Raises:
        ConfigError: there is no such run or version; the name is taken; a setting cannot change.
        IntegrityError: an object is missing or damaged.
        RefusedError: the version is not kept, or a run of either name is being removed.
        ProtocolError, StoreError.
    """
    history = History(store, source)
    run = history.existing_run()
    _check_free(store, name)
    log = history.fold(run) if at is None else history.fold_to(run, at)
    settings = _settings(log.settings, name, changes)
    with history.version_to_read(run, log.global_version):
        fragments = _copy_fragments(store, run, log, settings, tick)
    forked = RunRecord(
        ddl_version=__version__,
        name=name,
        lineage=secrets.token_hex(16),
        created_at=now,
        settings=settings,
        layout=run.layout,
        task_digest=run.task_digest,
        fragments=fragments,
        frozen=_copy_frozen(store, run, name),
    )
    if not store.put(ObjectKeys(name).run_record, canonical(forked), mode="create"):
        _check_free(store, name)
    return Forked(
        run=name,
        lineage=forked.lineage,
        store=store.url,
        source=run.name,
        source_lineage=run.lineage,
        source_version=log.global_version,
        changes={
            key: value
            for key in config.all_keys()
            if (value := config.get(settings, key)) != config.get(log.settings, key)
            and key != "run.name"
        },
    )


def _check_free(store: Store, name: str) -> None:
    if History(store, name).run_record() is not None:
        raise ConfigError(
            f"there is a run {name!r} in {store.url} already", hint="Use another name with --as"
        )


def _settings(settings: Settings, name: str, changes: Mapping[str, Scalar]) -> Settings:
    for key in changes:
        section = config.known_key(key, config.FLAG).partition(".")[0]
        reason = INHERITED.get(key)
        if section in ("store", "redis"):
            reason = "a fork lies in the store of its run, and Redis is no part of it"
        if reason:
            raise ConfigError(f"{key} cannot change in a fork: {reason}")
    return config.replace(
        settings, {**config.by_hand(changes), "run.name": name}, where=config.FLAG
    )


def _copy_fragments(
    store: Store,
    run: RunRecord,
    log: LogState,
    settings: Settings,
    tick: Callable[[str, int, int], None],
) -> tuple[ObjectRef, ...]:
    theirs = Payloads.of(store, run)
    ours = Payloads(store, settings.run.name, run.layout, settings)
    copies = []
    for number, head in enumerate(log.fragments):
        version = theirs.fragment(number, head.published)
        copies.append(ours.put_fragment(number, 0, version.weights, version.buffers))
        tick("fragments", len(copies), len(log.fragments))
    return tuple(copies)


def _copy_frozen(store: Store, run: RunRecord, name: str) -> ObjectRef | None:
    if run.frozen is None:
        return None
    data = Payloads.of(store, run).read(run.frozen)
    key = ObjectKeys(name).frozen(sha256(data))
    store.put(key, data)
    return ObjectRef(key=key, bytes=run.frozen.bytes, sha256=run.frozen.sha256)
