"""Contributions on local disk, from the snapshot until the receipt.

A payload is spooled before it is uploaded, so that a crash, a long outage or a new process under the
same id loses nothing that was handed in. One contribution is two files: the payload, and its
announcement, written last and by rename: without it the payload does not count.

Spools outlive their processes, until the run is removed on this machine. A living process has a lock
on its folder, which ends with it.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ddl.errors import ConfigError, ProtocolError, StoreFullError
from ddl.protocol.records import Handin, HandinId
from ddl.protocol.wire import canonical, parse


class Spool:
    """The spool of one learner of one run: `<root>/<run>-<lineage>/<learner>/`.

    Raises: ConfigError when the folder cannot be made.
    """

    def __init__(self, root: Path, *, run: str, lineage: str, learner: str) -> None:
        self.folder = run_folder(root, run=run, lineage=lineage) / learner
        try:
            self._made = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock: int | None = os.open(self.folder, os.O_RDONLY)
        except OSError as error:
            raise ConfigError(
                f"spool folder {self.folder} cannot be made: {error.strerror}",
                hint="Set DDL_SPOOL to a folder on local disk that this user may write to",
            ) from error
        with suppress(OSError):  # where there are no locks, only `ddl rm` knows less
            fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def close(self) -> None:
        """This process needs it no more."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def warm_file(self) -> Path:
        """Where this learner's own state lies (`ddl.learner.warm`)."""
        return self.folder.with_name(f"{self.folder.name}.warm.safetensors")

    def payload(self, id_: HandinId) -> Path:
        """Where the payload of a contribution lies."""
        return self.folder / f"{_name(id_)}.safetensors"

    def keep(self, handin: Handin, payload: memoryview) -> Path:
        """Write one contribution; it is whole on disk when this returns.

        Raises: StoreFullError when the disk does not take it; nothing half-written stays then.
        """
        path = self.payload(handin.id)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)  # whoever tidied up took it for rubbish
            _write(path, payload)
            _write(self._record(handin.id), memoryview(canonical(handin)))
        except OSError as error:
            self.drop(handin.id)
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            raise StoreFullError(
                f"contribution {handin.id} cannot be spooled in {self.folder}: {error.strerror}",
                hint="Free some space there, or start again with DDL_SPOOL on another disk"
                if full
                else "See that this user can write there, or start again with another DDL_SPOOL",
            ) from error
        return path

    def drop(self, id_: HandinId) -> None:
        """Forget one contribution: it has its receipt. The announcement goes first, since a
        payload without one does not count.

        What a disk that fails does not let go is found to have its receipt by the next life.
        """
        payload = self.payload(id_)
        with suppress(OSError):
            for path in (self._record(id_), payload, payload.with_suffix(".part")):
                path.unlink(missing_ok=True)

    def waiting(self) -> Iterator[Handin]:
        """Every whole contribution, oldest first; what is not whole is removed."""
        records = sorted(self.folder.glob("*.json"))
        whole = {record.stem for record in records}
        for path in self.folder.iterdir():
            if path.name.split(".")[0] not in whole:
                path.unlink(missing_ok=True)
        for path in records:
            try:
                handin = parse(path.read_bytes(), Handin, what=f"spooled announcement {path}")
            except ProtocolError:
                # of another version of ddl, or damaged: nobody can use it
                path.with_suffix(".safetensors").unlink(missing_ok=True)
                path.unlink(missing_ok=True)
                continue
            yield handin

    def discard(self) -> None:
        """Undo the making of the folder, for a learner that did not join. What was there before may be
        in use by a living process of the same id, and stays."""
        with suppress(OSError):  # not empty any more
            for path in self._made:
                path.rmdir()

    def _record(self, id_: HandinId) -> Path:
        return self.folder / f"{_name(id_)}.json"


def run_folder(root: Path, *, run: str, lineage: str) -> Path:
    """Where all spools of a run are on this machine."""
    return root / f"{run}-{lineage[:8]}"


def users(folder: Path) -> list[str]:
    """Learners on this machine whose living processes have their spools in a run's folder."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not _is_free(path))


def _is_free(folder: Path) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _name(id_: HandinId) -> str:
    return f"{id_.incarnation:06d}-f{id_.fragment:04d}-{id_.seq:08d}"


def _write(path: Path, data: memoryview) -> None:
    temporary = path.with_suffix(".part")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
