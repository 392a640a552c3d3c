"""The down thread: fetches newer versions, verifies them, and stages them for adoption."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ddl.codec.digest import sha256
from ddl.codec.fragment import decode_fragment
from ddl.core.learner import Staged
from ddl.errors import DdlError, IntegrityError, ObjectNotFoundError, StoreError
from ddl.learner.session import Session
from ddl.learner.shared import Shared, StagedFragment, backoff_s
from ddl.protocol.records import FragmentState, TensorSpec

DAMAGED_MAX = 5
"""Reads of a published version that may come out wrong before the learner gives up."""


class DownThread(threading.Thread):
    """Keeps the newest version of every fragment staged."""

    def __init__(self, session: Session, shared: Shared) -> None:
        super().__init__(name="ddl-down", daemon=True)
        self._session = session
        self._shared = shared
        self._damaged = 0

    def run(self) -> None:
        shared = self._shared
        attempt = 0
        try:
            while not shared.leaving.is_set():
                state = self._next_wanted()
                if state is None:
                    continue
                try:
                    self._stage(state)
                    attempt = 0
                except ObjectNotFoundError:
                    self._reread(state)
                    attempt += 1
                except (StoreError, IntegrityError) as error:
                    attempt += 1
                    self._note_failure(state, error)
                if attempt:
                    shared.leaving.wait(backoff_s(attempt))
        except DdlError as error:
            shared.fail(error)

    def _next_wanted(self) -> FragmentState | None:
        """Wait for something to fetch; None to look whether the learner is leaving."""
        with self._shared.changed:
            wanted = self._shared.machine.wanted()
            if not wanted:
                self._shared.changed.wait(self._shared.machine.settings.liveness.beat_s)
            return wanted[0] if wanted else None

    def _stage(self, state: FragmentState) -> None:
        session, shared = self._session, self._shared
        published = state.published
        data = session.store.get(published.key, progress=shared.transfers.add_down)
        found = sha256(data)
        if len(data) != published.bytes or found != published.sha256:
            raise IntegrityError(
                f"{published.key}: {len(data)} bytes with digest {found[:16]}, the log says "
                f"{published.bytes} bytes with digest {published.sha256[:16]}"
            )
        dtype = session.run.run.settings.fragments.publish_dtype
        fragment = decode_fragment(data, self._specs(state.fragment), dtype)
        with shared.changed:
            shared.staged[state.fragment] = StagedFragment(fragment.weights, fragment.buffers)
            shared.machine.on_staged(state.fragment, Staged(state.version, state.line, found))
            shared.store_down_since = None
            shared.changed.notify_all()
        self._damaged = 0

    def _specs(self, fragment: int) -> Sequence[TensorSpec]:
        return self._session.run.run.layout.by_fragment[fragment]

    def _reread(self, state: FragmentState) -> None:
        """The object is gone: a newer version has replaced it, and it was collected."""
        states = self._session.registry.read_fragments()
        if state in states:
            self._note_failure(
                state, IntegrityError(f"{state.published.key} is not in {self._session.store.url}")
            )
        with self._shared.changed:
            self._shared.machine.on_fragments(states)

    def _note_failure(self, state: FragmentState, error: DdlError) -> None:
        shared = self._shared
        if isinstance(error, IntegrityError):
            self._damaged += 1
            if self._damaged >= DAMAGED_MAX:
                raise error
        elif not error.retryable:
            raise error
        else:
            with shared.changed:
                if shared.store_down_since is None:
                    shared.store_down_since = self._session.clock.monotonic()
        self._session.journal.tell(
            "download.retried", f"fragment {state.fragment} v{state.version}: {error}"
        )
