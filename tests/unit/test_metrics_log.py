"""`--log`: curves as TensorBoard and Weights & Biases read them."""

from __future__ import annotations

import errno
import io
import os
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import RecordWriter

from ddl.errors import ConfigError, RegistryError
from ddl.journal import Journal
from ddl.metrics.families import Family
from ddl.metrics.log import writing

LABEL = {"run": "books", "learner": "a"}
OVER = "ddl_tokens_total"


class Source:
    """Numbers that move by 10 tokens at each look; the third look fails."""

    def __init__(self) -> None:
        self.looks = 0
        self.looked = threading.Event()
        self.enough = threading.Event()

    def __call__(self) -> Iterator[Family]:
        self.looks += 1
        self.looked.set()
        if self.looks == 3:
            raise RegistryError("Redis is away")
        if self.looks >= 5:
            self.enough.set()
        yield Family(OVER, "", "counter", (), (((), 10.0 * self.looks),))
        yield Family("ddl_loss", "", "gauge", (), (((), 1.0 / self.looks),))
        yield Family("ddl_ledger_tokens", "", "gauge", ("fate",), ((("merged",), 7.0),))


def curves(
    where: str, collect: Callable[[], Iterable[Family]], told: io.StringIO | None = None
) -> AbstractContextManager[None]:
    """Curves of learner a, a point at each look; what is said of them goes to `told`."""
    return writing(where, collect, over=OVER, label=LABEL, journal=Journal(told), every_s=0.01)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """(tokens, value) by name, from the event files of a folder."""
    found: dict[str, list[tuple[int, float]]] = {}
    for file in sorted(folder.glob("events.*")):
        data, at = file.read_bytes(), 0
        while at < len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            event = Event.FromString(data[at + 12 : at + 12 + size])
            at += 12 + size + 4  # length and its checksum, the event, its checksum
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def test_tensorboard_gets_every_point_over_tokens(tmp_path: Path) -> None:
    """A look that fails is left out, the last one is there; the folder names run and learner."""
    source = Source()
    with curves(f"tensorboard:{tmp_path}", source):
        assert source.enough.wait(30)
    found = scalars(tmp_path / "books" / "a")
    looks = [n for n in range(1, source.looks + 1) if n != 3]
    assert [step for step, _ in found["ddl_loss"]] == [10 * n for n in looks]
    assert [value for _, value in found["ddl_loss"]] == pytest.approx([1 / n for n in looks])
    assert found["ddl_ledger_tokens/merged"][-1] == (10 * source.looks, 7.0)


def test_a_run_that_stands_still_gives_one_point(tmp_path: Path) -> None:
    looked = threading.Semaphore(0)

    def still() -> Iterator[Family]:
        looked.release()
        yield Family(OVER, "", "counter", (), (((), 10.0),))

    with curves(f"tensorboard:{tmp_path}", still):
        for _ in range(3):
            assert looked.acquire(timeout=30)
    assert scalars(tmp_path / "books" / "a")[OVER] == [(10, 10.0)]


def test_wandb_gets_the_same_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of the project, in the group of our run, named after the learner; nothing on stdout."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    source = Source()
    with curves("wandb:reading", source):
        assert source.enough.wait(60)
    import wandb

    wandb.teardown()  # its service writes the rest behind `finish`, and ends at the process's end
    files = list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 1
    written = files[0].read_bytes()  # protobuf records; names and texts stand in them as they are
    for text in (b"reading", b"books", b"ddl_loss", b"ddl_ledger_tokens/merged"):
        assert text in written


class ServiceGoneError(Exception):
    """As wandb raises one that is no error of any other kind."""


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left on device"),
        (ServiceGoneError("its service has ended"), "its service has ended"),
    ],
    ids=["full", "gone"],
)
def test_a_writer_that_fails_ends_the_curves_and_nothing_else(
    error: Exception, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told, once; the block, and so the training in it, goes on and ends as if nothing were."""

    def no_room(_self: object, _data: bytes) -> None:
        raise error

    told = io.StringIO()
    source = Source()
    with curves(f"tensorboard:{tmp_path}", source, told):
        assert source.looked.wait(30)
        monkeypatch.setattr(RecordWriter, "write", no_room)
    assert told.getvalue().count("log.failed") == 1
    assert f"ends here: {cause}" in told.getvalue()


@pytest.mark.parametrize("where", ["tensorboard", "tensorboard:", "sheets:x", ""])
def test_what_cannot_be_read_is_refused(where: str) -> None:
    with (
        pytest.raises(ConfigError, match="tensorboard:DIR or wandb:PROJECT"),
        curves(where, Source()),
    ):
        pass


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.delitem(sys.modules, "tensorboardX.event_file_writer", raising=False)
    with (
        pytest.raises(ConfigError, match=r"decoupled-diloco\[tensorboard\]"),
        curves(f"tensorboard:{tmp_path}", Source()),
    ):
        pass


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigError, match=r"cannot write there: .*directory"),
        curves(f"tensorboard:{tmp_path}/file", Source()),
    ):
        pass
