"""The published bytes that the next step of each fragment is to be added to.

Only with compressed publication (`codec.down = "int4-step"`). A learner's anchor is no such base: it
moves with every hand-in. The bases so are a second copy of the model, and lie in files without a
name in the spool's folder: they cost disk (one model as it is published) and of memory only what the
system's cache can spare, and they vanish with the process. What is read back needs no check of its
own, since the version made of it is checked by its digest.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from io import BufferedRandom
from pathlib import Path

from ddl.codec.frame import Buffer
from ddl.errors import StoreFullError


class Bases:
    """Used by the down thread alone.

    Args:
        folder: on local disk; it exists.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[int, BufferedRandom] = {}
        self._sizes: dict[int, int] = {}

    def keep(self, fragment: int, data: Buffer) -> None:
        """Keep a version in place of the one before.

        Raises: StoreFullError: none is kept then; the next version has to come whole.
        """
        self._sizes.pop(fragment, None)
        try:
            if fragment not in self._files:
                # closed by `close`
                self._files[fragment] = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
            file = self._files[fragment]
            file.seek(0)
            file.write(data)
            file.flush()
        except OSError as error:
            raise StoreFullError(
                f"the base of fragment {fragment} cannot be kept in {self._folder}: "
                f"{error.strerror}; its next version is downloaded whole",
                hint="Free some space there, or set DDL_SPOOL to another disk",
            ) from error
        self._sizes[fragment] = len(data)

    def read(self, fragment: int) -> bytearray | None:
        """The version kept last; None if there is none, or it cannot be read."""
        if fragment not in self._sizes:
            return None
        data = bytearray(self._sizes[fragment])
        file = self._files[fragment]
        try:
            file.seek(0)
            return data if file.readinto(data) == len(data) else None
        except OSError:  # a disk that fails: the version comes whole
            return None

    def close(self) -> None:
        """Give the files back to the disk."""
        for file in self._files.values():
            with suppress(OSError):  # what could not be written is not wanted any more
                file.close()
        self._files.clear()
        self._sizes.clear()
