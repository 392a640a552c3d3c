"""`--log`: the numbers of `/metrics` as curves, written while a run goes on.

    tensorboard:DIR    event files below DIR, for TensorBoard; needs the extra `tensorboard`
    wandb:PROJECT      a run of Weights & Biases; needs the extra `wandb`

Curves stand over merged tokens (a coordinator's) or tokens trained on (a learner's). wandb's points are
written by a service of its own, which says of a disk that fills up only in its `debug-internal.log`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from ddl.errors import ConfigError, DdlError

if TYPE_CHECKING:
    from ddl.journal import Journal
    from ddl.metrics.families import Family

EVERY_S: Final = 5.0
"""A point at most so often."""


class Writer(Protocol):
    """Takes the points of a process; one thread at a time calls it."""

    def write(self, values: Mapping[str, float], *, tokens: int) -> None: ...
    def close(self) -> None: ...


@contextmanager
def writing(
    where: str,
    collect: Callable[[], Iterable[Family]],
    *,
    over: str,
    label: Mapping[str, str],
    journal: Journal,
    every_s: float = EVERY_S,
) -> Iterator[None]:
    """Write what `collect` gives, whenever `over` has moved, for as long as the block lasts; and once
    more at its end.

    Nothing that goes wrong after the start ends the block: a look at which `collect` raises a DdlError
    is left out; whatever the writer raises, as of a full disk, ends the curves, which is told.
    Args:
        where: "tensorboard:DIR" or "wandb:PROJECT".
        over: the family that counts tokens.
        label: the run, and the learner; names what is written.
    Raises: ConfigError: `where` is neither, its extra is not installed, or it cannot be started.
    """
    writer = open_writer(where, label)
    ended = threading.Event()

    def loop() -> None:
        done = 0
        try:
            while True:
                is_last = ended.wait(every_s)
                with suppress(DdlError):
                    values = dict(_values(collect()))
                    tokens = round(values.get(over, 0))
                    if tokens != done:
                        writer.write(values, tokens=tokens)
                        done = tokens
                if is_last:
                    writer.close()
                    return
        except Exception as error:  # noqa: BLE001 - others' code: it may raise anything
            cause = (error.strerror if isinstance(error, OSError) else "") or error
            journal.tell("log.failed", f"--log {where} ends here: {cause}")
            with suppress(Exception):
                writer.close()

    thread = threading.Thread(target=loop, name="ddl-log")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def open_writer(where: str, label: Mapping[str, str]) -> Writer:
    """The writer that `--log WHERE` asks for. Raises: ConfigError."""
    kind, _, rest = where.partition(":")
    if kind not in _WRITERS or not rest:
        raise ConfigError(
            f"--log {where!r} is unknown", hint="Use tensorboard:DIR or wandb:PROJECT"
        )
    try:
        return _WRITERS[kind](rest, label)
    except ImportError as error:
        raise ConfigError(
            f"--log {where} needs {error.name}, which is not installed",
            hint=f"Install the extra: pip install 'decoupled-diloco[{kind}]'",
        ) from error
    except OSError as error:
        raise ConfigError(
            f"--log {where}: cannot write there: {error.strerror or error}"
        ) from error


def _values(families: Iterable[Family]) -> Iterator[tuple[str, float]]:
    """Every row by a name such as `ddl_loss` or `ddl_learner_loss/a`."""
    for family in families:
        for labels, value in family.rows:
            yield "/".join((family.name, *labels)), value


class _TensorBoard:
    """Writes in the caller's thread: the package's own writer has one of its own, which a full disk ends,
    and who then waits for it waits for ever."""

    def __init__(self, folder: str, label: Mapping[str, str]) -> None:
        from tensorboardX.event_file_writer import EventsWriter

        place = Path(folder, *label.values())
        place.mkdir(parents=True, exist_ok=True)
        # the files of a process that was started again lie beside those of the one before
        self._file = EventsWriter(str(place / "events"), f".{os.getpid()}")

    def write(self, values: Mapping[str, float], *, tokens: int) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        rows = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._file.write_event(
            Event(wall_time=time.time(), step=tokens, summary=Summary(value=rows))
        )
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class _Wandb:
    def __init__(self, project: str, label: Mapping[str, str]) -> None:
        import wandb

        # its own log is likely to lie on the same disk: a traceback for each line would help nobody
        logging.raiseExceptions = False
        quiet = wandb.Settings(silent=True, console="off", disable_git=True, save_code=False)
        try:
            self._run = wandb.init(
                project=project,
                group=label["run"],
                name=label.get("learner", "coordinator"),
                config=dict(label),
                settings=quiet,
            )
        except wandb.Error as error:
            raise ConfigError(
                f"--log wandb:{project}: {error}",
                hint="`wandb login` once on this machine, or set WANDB_MODE=offline",
            ) from error
        self._run.define_metric("*", step_metric="tokens")

    def write(self, values: Mapping[str, float], *, tokens: int) -> None:
        self._run.log({**values, "tokens": tokens})

    def close(self) -> None:
        self._run.finish()


_WRITERS: Final[Mapping[str, Callable[[str, Mapping[str, str]], Writer]]] = {
    "tensorboard": _TensorBoard,
    "wandb": _Wandb,
}
