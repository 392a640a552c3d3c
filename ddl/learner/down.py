"""The down thread: fetches newer versions, verifies them, and stages them for adoption.

With compressed publication a version comes as the step from the one before, if that was the last
one staged; whatever stands in the way of that, the whole version does.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddl.codec.fragment import PublishDtype, decode_fragment, version_metadata
from ddl.codec.frame import Buffer
from ddl.codec.step import rebuild_version
from ddl.core.learner import Staged
from ddl.errors import (
    DdlError,
    IntegrityError,
    ObjectNotFoundError,
    RegistryError,
    StoreError,
    TaskError,
)
from ddl.learner.bases import Bases
from ddl.learner.session import CHECKS, DOWNLOADS, Session
from ddl.learner.shared import Shared, StagedFragment, backoff_s
from ddl.learner.worker import Worker
from ddl.protocol.records import FragmentState, ObjectRef, TensorSpec
from ddl.store.hashed import get_checked

DAMAGED_MAX = 5
"""Wrong reads in a row of published versions after which a learner that joins gives up. One that
trains goes on: the next version of that fragment will do."""


class DownThread(Worker):
    """Keeps the newest version of every fragment staged."""

    def __init__(self, session: Session, shared: Shared) -> None:
        super().__init__("down", shared)
        self._session = session
        self._damaged = 0
        by_steps = session.run.run.settings.codec.down == "int4-step"
        self._bases = Bases(session.spool.folder) if by_steps else None

    def work(self) -> None:
        shared = self._shared
        attempt = 0
        try:
            while not shared.leaving.is_set():
                state = self._next_wanted()
                if state is None:
                    continue
                try:
                    self._try_to_stage(state)
                    attempt = 0
                except (StoreError, IntegrityError, RegistryError) as error:
                    attempt += 1
                    self._note_failure(error)
                    shared.leaving.wait(backoff_s(attempt))
        finally:
            if self._bases is not None:
                self._bases.close()

    def _next_wanted(self) -> FragmentState | None:
        """Wait for something to fetch; None to look whether the learner is leaving."""
        with self._shared.changed:
            wanted = self._shared.machine.wanted()
            if not wanted:
                self._shared.changed.wait(self._shared.machine.settings.liveness.beat_s)
            return wanted[0] if wanted else None

    def _try_to_stage(self, state: FragmentState) -> None:
        """Stage a version, or find that a newer one has taken its place."""
        try:
            self._stage(state)
        except ObjectNotFoundError:  # replaced, and collected
            states = self._session.registry.read_fragments()
            with self._shared.changed:
                self._shared.machine.on_fragments(states)
            if state in states:
                key = state.published.key
                raise IntegrityError(f"{key} is not in {self._session.store.url}") from None

    def _stage(self, state: FragmentState) -> None:
        shared, p = self._shared, state.fragment
        data = self._by_step(state)
        if data is None:
            data = self._fetch(state.published)
        fragment = decode_fragment(data, self._specs(p), self._dtype)
        if self._bases is not None:
            self._keep_base(self._bases, p, data)
        with shared.changed:
            shared.staged[p] = StagedFragment(fragment.weights, fragment.buffers)
            staged = Staged(state.version, state.line, state.published.sha256, state.seq)
            shared.machine.on_staged(p, staged)
            shared.changed.notify_all()
        self._session.troubles.end(DOWNLOADS, CHECKS)
        self._damaged = 0

    def _fetch(self, ref: ObjectRef) -> bytearray:
        """Read an object. Raises: IntegrityError unless its digest is the log's."""
        session = self._session
        return get_checked(session.store, ref, progress=self._shared.transfers.add_down)

    def _by_step(self, state: FragmentState) -> Buffer | None:
        """The version from the one before it and the step between, if both are to be had.

        None is no failure: any version can be fetched whole.
        """
        with self._shared.changed:
            takes_step = self._shared.machine.takes_step(state)
        base = self._bases.read(state.fragment) if self._bases and takes_step else None
        if base is None or state.step is None:
            return None
        run, p, version = self._session.run.run.name, state.fragment, state.version
        metadata = version_metadata("fragment", run, p, version)
        try:
            step = self._fetch(state.step)
            made = rebuild_version(base, step, self._specs(p), self._dtype, metadata)
        except (ObjectNotFoundError, IntegrityError, TaskError) as error:
            self._tell_of_step(state, str(error))
            return None
        if made.sha256 != state.published.sha256:
            self._tell_of_step(state, f"it leads to a version with digest {made.sha256[:16]}")
            return None
        return made.buffer

    def _tell_of_step(self, state: FragmentState, problem: str) -> None:
        what = f"fragment {state.fragment} v{state.version}"
        self._session.journal.tell("step.useless", f"{what}: {problem}; it is fetched whole")

    def _keep_base(self, bases: Bases, fragment: int, data: Buffer) -> None:
        try:
            bases.keep(fragment, data)
        except StoreError as error:
            self._session.journal.on_change("base", "base.not_kept", str(error))
        else:
            self._session.journal.forget("base")

    @property
    def _dtype(self) -> PublishDtype:
        return self._session.run.run.settings.fragments.publish_dtype

    def _specs(self, fragment: int) -> Sequence[TensorSpec]:
        return self._session.run.run.layout.by_fragment[fragment]

    def _note_failure(self, error: DdlError) -> None:
        """Say it, and go on if it may mend itself. Of Redis the beat thread tells."""
        session, shared = self._session, self._shared
        if isinstance(error, IntegrityError):
            self._damaged += 1
            if self._damaged >= DAMAGED_MAX and not shared.machine.started:
                raise error
            session.troubles.begin(CHECKS, str(error))
        elif not error.retryable:
            raise error
        elif isinstance(error, StoreError):
            session.troubles.begin(DOWNLOADS, str(error))
