"""What a coordinator and a learner tell Prometheus; made of the records that every view draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

from ddl.protocol.records import (
    FATES,
    LearnerRecord,
    LearnerState,
    LearnerView,
    RunSnapshot,
    RunState,
)


class Family(NamedTuple):
    """One metric with its rows.

    Attributes:
        kind: a counter never falls while its process lives; its name ends in "_total".
        labels: names of the labels; a row has a value for each.
    """

    name: str
    help: str
    kind: Literal["gauge", "counter"]
    labels: tuple[str, ...]
    rows: tuple[tuple[tuple[str, ...], float], ...]


def of_run(shown: RunSnapshot) -> Iterator[Family]:
    """Families of a whole run: the coordinator's `/metrics`."""
    run = shown.run
    yield _one("ddl_global_version", "Newest version of the model.", run.global_version)
    yield _one(
        "ddl_progress_tokens", "Merged tokens; falls when a run is rolled back.", run.progress
    )
    yield _one("ddl_stop_tokens", "Token budget; 0: none.", run.stop_tokens)
    yield _one("ddl_line", "How often the run was rolled back.", run.line)
    yield _states("ddl_run_state", "1 for the state that the run is in.", RunState, {run.state: 1})
    yield _one(
        "ddl_committed_at_seconds",
        "When the newest version was published, Unix time.",
        run.committed_at,
    )
    yield _some("ddl_loss", "Mean training loss of the newest version's contributions.", shown.loss)
    yield _some(
        "ddl_goodput_ratio",
        "Share of the learners' time in steps that were of use.",
        run.goodput_ratio,
    )
    yield Family(
        "ddl_ledger_tokens",
        "Tokens handed in, by what became of them.",
        "gauge",
        ("fate",),
        tuple(((fate,), getattr(shown.ledger, fate)) for fate in FATES),
    )
    for name in ("cos_peers", "cos_prev", "step_norm"):
        yield _some(
            f"ddl_outer_{name}", "Health of the newest outer step.", getattr(shown.health, name)
        )
    yield _one("ddl_coordinator_epoch", "Epoch of the lease.", shown.coordinator.epoch)
    yield _one(
        "ddl_coordinator_standbys", "Coordinators that wait.", len(shown.coordinator.standbys)
    )
    yield _one("ddl_rounds_open", "Rounds that wait for contributions.", len(shown.rounds))
    yield Family(
        "ddl_trouble",
        "1 for everything that is wrong now; alarm: the run cannot go on as it is.",
        "gauge",
        ("name", "alarm"),
        tuple(
            ((name, str(alarm).lower()), float(num))
            for (name, alarm), num in Counter((t.name, t.alarm) for t in shown.troubles).items()
        ),
    )
    states = Counter(str(learner.state) for learner in shown.learners)
    yield _states("ddl_learners", "Learners by state.", LearnerState, states)
    yield from _of_learners(shown.learners)


def _of_learners(learners: tuple[LearnerView, ...]) -> Iterator[Family]:
    told = [
        ("ddl_learner_step", "Steps of this life.", "step"),
        ("ddl_learner_tokens", "Tokens trained on in this life.", "tokens"),
        ("ddl_learner_step_seconds", "Time of a step.", "step_s"),
        ("ddl_learner_loss", "Training loss.", "loss"),
        ("ddl_learner_beat_age_seconds", "Time since its last heartbeat.", "beat_age_s"),
        ("ddl_learner_share_ratio", "Share of the tokens merged lately.", "share_ratio"),
        ("ddl_learner_behind_versions", "Versions that it has not adopted yet.", "behind"),
        ("ddl_learner_stall_seconds", "Training time spent inside ddl.", "stall_s"),
        ("ddl_learner_busy_seconds", "Training time outside of ddl.", "busy_s"),
        ("ddl_learner_up_bytes", "Bytes put into the store.", "up_bytes"),
        ("ddl_learner_down_bytes", "Bytes read from the store.", "down_bytes"),
        (
            "ddl_learner_store_down_seconds",
            "How long it has not reached the store.",
            "store_down_s",
        ),
        ("ddl_learner_rss_bytes", "Memory of its process.", "rss_bytes"),
    ]
    for name, text, attribute in told:
        values = [(one.id, getattr(one, attribute)) for one in learners]
        rows = tuple(((id_,), float(value)) for id_, value in values if value is not None)
        yield Family(name, text, "gauge", ("learner",), rows)


def of_learner(record: LearnerRecord) -> Iterator[Family]:
    """Families of one learner: its own `/metrics`, which needs no Redis."""
    yield _total("ddl_steps_total", "Applied optimizer steps.", record.step)
    yield _total("ddl_tokens_total", "Tokens trained on.", record.tokens)
    yield _total("ddl_up_bytes_total", "Bytes put into the store.", record.up_bytes)
    yield _total("ddl_down_bytes_total", "Bytes read from the store.", record.down_bytes)
    yield _total("ddl_stall_seconds_total", "Training time spent inside ddl.", record.stall_s)
    yield _total("ddl_busy_seconds_total", "Training time outside of ddl.", record.busy_s)
    yield _some("ddl_step_seconds", "Time of a step.", record.step_s)
    yield _some("ddl_loss", "Training loss.", record.loss)
    yield _some("ddl_lr", "Inner learning rate.", record.lr)
    yield _one("ddl_in_hand_tokens", "Tokens trained on and not handed in.", record.in_u.tokens)
    yield _one(
        "ddl_discarded_tokens", "Tokens whose work was thrown away.", record.discarded.tokens
    )
    yield _one("ddl_realigns", "How often it took over the whole model.", record.realigns)
    yield _one(
        "ddl_store_down_seconds", "How long the store has not been reached.", record.store_down_s
    )
    yield _one("ddl_rss_bytes", "Memory of this process.", record.rss_bytes)


def _one(name: str, text: str, value: float) -> Family:
    return Family(name, text, "gauge", (), (((), float(value)),))


def _some(name: str, text: str, value: float | None) -> Family:
    """A gauge that is left out while nothing is known."""
    return Family(name, text, "gauge", (), () if value is None else (((), float(value)),))


def _total(name: str, text: str, value: float) -> Family:
    return Family(name, text, "counter", (), (((), float(value)),))


def _states(name: str, text: str, kind: object, found: dict[str, int]) -> Family:
    """A row for every state that there could be, so that none comes and goes."""
    rows = tuple(((state,), float(found.get(state, 0))) for state in get_args(kind))
    return Family(name, text, "gauge", ("state",), rows)
