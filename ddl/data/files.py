"""Many files as data: each file is a unit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ddl.errors import ConfigError


class Files:
    """Files that are read from their beginning to their end, one unit each.

    The files come in a seeded order, the rows of a file in the file's own: shuffle them when you
    write it, or in `read`. Learners must have the same files under the same names, in folders that
    may differ.

    Args:
        paths: the files, in any order.
        read: the rows of one file, the same ones in the same order each time. For worker processes
            it must be a function of an importable module.
    Attributes:
        fingerprint: equal on two machines only if their files have the same names.
    Raises: ConfigError if there is no file, or one twice.
    """

    def __init__(self, paths: Iterable[str | Path], read: Callable[[Path], Iterable[Any]]) -> None:
        self.read = read
        given = sorted(Path(path).absolute() for path in paths)
        if not given:
            raise ConfigError("Files were given no path", hint="Check the pattern or folder")
        common = Path(os.path.commonpath([path.parent for path in given]))
        # by their names below the common folder: the order must not depend on where that lies
        named = {path.relative_to(common).as_posix(): path for path in given}
        if len(named) != len(given):
            raise ConfigError(f"a file below {common} was given twice")
        self.paths: Sequence[Path] = [named[name] for name in sorted(named)]
        self.fingerprint = "\n".join(sorted(named))

    def __len__(self) -> int:
        return len(self.paths)
