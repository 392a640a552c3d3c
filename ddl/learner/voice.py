"""What a learner tells in its log of how it is doing: sentences for people, fields for programs."""

from __future__ import annotations

from typing import Final

from ddl.core.preset import early_steps
from ddl.learner.session import SPOOL, Session
from ddl.learner.shared import Shared
from ddl.names import counted
from ddl.protocol.records import Handin, Receipt

PROGRESS_S: Final = 30.0
"""Between two lines on progress."""

SKIPPED_RATIO: Final = 0.1
"""Share of steps left out that is worth a warning; a gradient scaler leaves out one in thousands."""

SKIPPED_FEW: Final = 5
"""So many are none: a scaler that begins too high leaves out its first steps."""


class Voice:
    """One learner's; `tell_progress` belongs to the beat thread, the rest to any."""

    def __init__(self, session: Session, shared: Shared) -> None:
        self._session = session
        self._shared = shared
        self._told_at = session.clock.monotonic()
        self._told_steps = self._told_tokens = self._told_skipped = 0
        self._first = True

    def started(self) -> None:
        """It holds the run's weights and begins to train."""
        session, machine = self._session, self._shared.machine
        run = session.run.run
        version = machine.head.global_version if machine.head else 0
        steps = machine.settings.round.every_steps
        num = run.layout.num_fragments
        session.tell(
            "learner.started",
            f"{session.learner} trains from version {version} on {session.record.device}: "
            f"{run.layout.num_parameters:,} parameters in {counted(num, 'fragment')}, "
            f"a round of each every {counted(steps, 'step')}"
            + (", at first more often" if early_steps(machine.settings) else ""),
            learner=session.learner,
            version=version,
        )

    def handed_in(self, handin: Handin) -> None:
        """A contribution lies in the store; the first one is worth a line."""
        with self._shared.changed:
            first, self._first = self._first, False
        if first:
            life = self._session.incarnation
            since = f" since it came back as life {life}" if life > 1 else ""
            self._session.journal.tell(
                "contribution.first",
                f"the first one{since} is in the store: {handin.id}, {counted(handin.steps, 'step')}, "
                f"{handin.tokens:,} tokens, {handin.payload.bytes:,} bytes",
                contribution=str(handin.id),
            )

    def settled(self, receipt: Receipt) -> None:
        """A contribution has got its receipt; only one that was not merged is worth a line."""
        if receipt.fate != "merged":
            self._session.journal.tell(
                f"contribution.{receipt.fate}",
                f"{receipt.id} is {receipt.fate.replace('_', ' ')}: {receipt.reason}",
                contribution=str(receipt.id),
            )

    def tell_progress(self) -> None:
        """Tell where it stands, if it is time to."""
        now = self._session.clock.monotonic()
        passed_s = now - self._told_at
        if passed_s < PROGRESS_S:
            return
        shared = self._shared
        loss = shared.loss.value()
        with shared.changed:
            machine = shared.machine
            if machine.paused:
                return  # told when it began
            started, staged = machine.started, len(shared.staged)
            step, tokens = machine.local_steps, machine.trained.tokens
            version = machine.head.global_version if machine.head else 0
            waiting, fraction = machine.num_uploading, machine.merged_fraction()
            skipped = shared.skipped - self._told_skipped
        steps, rate = step - self._told_steps, (tokens - self._told_tokens) / passed_s
        self._told_at, self._told_steps, self._told_tokens = now, step, tokens
        self._told_skipped += skipped
        self._tell_skipped(skipped, of=steps + skipped)
        if not started:
            num = self._session.run.run.layout.num_fragments
            text = f"still joining: {staged} of {counted(num, 'fragment')} of version {version}"
        elif not steps and not skipped:
            text = f"no step in the last {passed_s:.0f} s: the training loop is busy or stuck"
        else:
            text = f"step {step:,}, {rate:,.0f} tokens/s"
            text += "" if loss is None else f", loss {loss:.4g}"
            text += f", {skipped:,} of {steps + skipped:,} steps left out" if skipped else ""
        of_budget = f" ({fraction:.0%} of its budget merged)" if fraction else ""
        uploads = f", {counted(waiting, 'upload')} waiting" if waiting else ""
        self._session.journal.tell(
            "learner.progress",
            f"{text}; the run is at version {version}{of_budget}{uploads}",
            step=step,
            tokens=tokens,
            tokens_per_s=round(rate, 3),
            loss=loss,
            version=version,
            uploads_waiting=waiting,
            skipped=skipped,
        )

    def _tell_skipped(self, skipped: int, *, of: int) -> None:
        """Warn, once, while the optimizer leaves out many of its steps."""
        if skipped <= max(SKIPPED_FEW, SKIPPED_RATIO * of):
            self._session.journal.forget("skipped")
            return
        self._session.journal.on_change(
            "skipped",
            "steps.skipped",
            f"the optimizer leaves out more than {SKIPPED_RATIO:.0%} of its steps, which count for "
            "nothing: if its gradient scaler overflows again and again, lower the learning rate or "
            "train in bf16",
        )

    def left(self, why: str, *, error: str = "", cure: str = "") -> None:
        """It ends. What is not handed in by now is lost, but for what the spool keeps.

        An error is for programs here: people are told of it by whoever ends the process. `cure` says
        what lets it come back, where that needs a person.
        """
        with self._shared.changed:
            machine = self._shared.machine
            version = machine.head.global_version if machine.head else 0
            step, waiting = machine.local_steps, machine.num_uploading
            lost = round(machine.work("in_u").tokens)
            is_used_up = machine.merged_fraction() >= 1
        kept = "" if self._session.troubles.seconds(SPOOL) else ", kept in the spool"
        not_sent = f"; {counted(waiting, 'contribution')} not uploaded{kept}" if waiting else ""
        left = f"; {lost:,} tokens were not handed in, and are lost" if lost else ""
        if lost and is_used_up:
            left = f"; {lost:,} tokens are more than the run's budget takes"
        self._session.journal.tell(
            "learner.ended",
            f"{self._session.learner} ends after {counted(step, 'step')}, the run is at version "
            f"{version}: {'it cannot go on' if error else why}{not_sent}{left}{cure and f'. {cure}'}",
            learner=self._session.learner,
            why=error or why,
            step=step,
            version=version,
        )
