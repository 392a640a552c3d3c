"""`run.toml` with every setting explained; what `ddl init` writes."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any, Final

from ddl.config import FIXED, LIVE, Scalar, Settings, all_keys, get
from ddl_cli.toml_text import toml_value

_TABLES: Final = {
    "run": "The run itself.",
    "task": "What is trained.",
    "redis": "The control plane: Redis 6.2 or newer, or Valkey. It may lose everything.",
    "store": "The object store, which holds the truth: an S3 bucket, or a shared directory.",
    "fragments": "The model is handed in and merged in pieces, whole tensors each.",
    "round": "When contributions to a fragment are merged into its next version.",
    "merge": "How contributions are combined.",
    "adopt": "How a learner takes a new version over.",
    "codec": "What travels, and how large it is.",
    "outer": "The optimizer step that the coordinator takes on what was merged (Nesterov SGD).",
    "gate": "What is checked before a contribution may touch the model.",
    "liveness": "Who is there, in seconds: 3 beat_s <= suspect_s <= gone_s, and 3 beat_s <= lease_s.",
    "health": "What to do when the loss gets worse.",
    "stop": "When the run is over; 0 is never.",
    "keep": "What stays in the store, counted in versions. The log always stays.",
}

_MEANINGS: Final = {
    "run.name": "a-z, 0-9 and '-'; learners join by it, and its objects lie under it in the store",
    "run.seed": "of the start weights",
    "task.file": "defines build(ctx); each machine has its own copy, and nothing of it travels",
    "task.digest": "a learner whose file differs: warn | refuse (another model is always refused)",
    "task.args": "what build(ctx) finds in ctx.args; --arg KEY=VALUE of a learner stands above it",
    "redis.url": "redis://, rediss:// (TLS) or unix://; with a password better in DDL_REDIS",
    "store.url": "s3://BUCKET/PREFIX or file:///DIR; credentials are read as the AWS tools do",
    "store.endpoint_url": "of an S3 store that is not AWS, such as https://s3.example.org",
    "store.region": "of the bucket; most stores other than AWS need none",
    "store.part_bytes": "objects above this size travel in parts of it, several at once",
    "fragments.num": "0: by the size of the model; at most round.every_steps",
    "fragments.publish_dtype": "of published weights: float32 | bfloat16 (half the download)",
    "round.every_steps": "each fragment is merged about once in so many steps (H); at first more often",
    "round.overlap_steps": "steps that a round may take from opening to publication (tau)",
    "round.in_flight": "fragments whose rounds are open at once; past its deadline one does not count",
    "round.quorum": "fresh contributions that a merge needs; more than there are learners: it waits",
    "round.grace_ratio": "share of the time to spare that is waited for others after the quorum",
    "round.deadline_s": "then a round closes, or waits on for its quorum; 0: by the learners' speed",
    "round.staleness_max": "a contribution that is more versions late expires",
    "round.staleness_decay": "each version that a contribution is late multiplies its weight by this",
    "merge.method": "rda (direction and length averaged apart) | mean",
    "adopt.mode": "carry (keeps steps not yet handed in) | overwrite (drops them) | blend",
    "adopt.alpha": "blend only: share of the steps not yet handed in that is kept",
    "codec.up": "of contributions: fp32 | bf16 | int8 | int4; what it loses is handed in later",
    "codec.down": "of versions: full | int4-step (the change, in 4 bits)",
    "outer.preset": "auto (chosen as the run goes on, first versions sooner; see its log) | fixed (as below)",
    "outer.lr": "learning rate; where it or momentum is set, the preset is fixed unless it is set, too",
    "outer.momentum": "below 1",
    "gate.norm_factor": "refused: a step so many times longer than those of peers and history",
    "gate.calm_rounds": "rounds at the start in which the length is not judged",
    "gate.refusals_max": "refusals in a row after which a learner is put aside until it re-aligns",
    "liveness.beat_s": "between two signs of life",
    "liveness.suspect_s": "without one: no round waits for this learner",
    "liveness.gone_s": "without one: it counts as gone, and its id is free again",
    "liveness.lease_s": "a coordinator that is silent for so long may be replaced",
    "liveness.max_offline_s": "without Redis and store, a learner trains on for so long",
    "liveness.offline_action": "and then: pause | exit (with code 75)",
    "liveness.drain_s": "after SIGTERM, a learner has so long to hand in what it has",
    "health.rollback": "off | hold (merge nothing, raise an alarm) | auto (back to a good version)",
    "health.loss_jump_ratio": "a loss so much above its best counts as bad: 0.2 is 20 %",
    "health.bad_rounds": "so many bad rounds in a row set it off",
    "stop.tokens": "merged in all, over all learners",
    "stop.commits": "versions of the whole model",
    "keep.versions": "newest versions of each fragment",
    "keep.every": "and every so-many-th version of the whole model, for good: storage grows; 0: none",
    "keep.contributions": "receipted (removed once merged) | all (to replay from the oldest kept version)",
}

_HEADER: Final = """\
Settings of a run. `ddl coordinator start` reads this file; learners need only the join address.

A line #key = value shows a default: take the # away to change it.
Flags (--set round.quorum=3) stand above the environment (DDL_ROUND_QUORUM=3), that above this
file. `ddl config show run.toml` says what holds and why; `ddl doctor run.toml` tries it out."""


def settings_text(chosen: Mapping[str, Scalar]) -> str:
    """A `run.toml` in which the settings in `chosen` are set and all others stand as comments."""
    blocks = [_comment(_HEADER)]
    defaults = Settings()
    for section in Settings.__struct_fields__:
        lines = [_comment(f"{_TABLES[section]}\n{_who(section)}"), f"[{section}]"]
        for key in all_keys():
            if key.partition(".")[0] == section:
                lines += _setting(key, get(defaults, key), chosen)
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _setting(key: str, default: Any, chosen: Mapping[str, Scalar]) -> list[str]:
    name = key.partition(".")[2]
    meaning = _comment(f"{name}: {_MEANINGS[key]}")
    lines = [meaning, f"#{name} = {toml_value(default)}"]
    if key in chosen:
        lines.append(f"{name} = {toml_value(chosen[key])}")
    return lines


def _who(section: str) -> str:
    if section in FIXED:
        return "Fixed once the run exists."
    if section in LIVE:
        return "May change while the run goes on."
    return "Of this machine only: never stored."


def _comment(text: str) -> str:
    return textwrap.indent(text, "# ", lambda _: True).replace("# \n", "#\n")
