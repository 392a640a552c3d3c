"""Programs and files, as a person would type them into the shell that this process was started from."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path


def program(name: str, *, here: Path | None = None) -> str:
    """A program of this process's environment: its name, where the shell finds that very one, else
    its path; the bare name also where the environment keeps its programs elsewhere.

    Args:
        here: folder in which it will be typed; the current one by default.
    """
    own = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    if not own.exists() or (found is not None and Path(found).absolute() == own.absolute()):
        return shlex.quote(name)
    return place(own, here=here)


def python() -> str:
    """The Python that runs this process."""
    return program(Path(sys.executable).name)


def place(path: Path, *, here: Path | None = None) -> str:
    """A file or folder: from `here` on if it is below, else its whole path."""
    path = path.absolute()  # no resolve(): a link in an environment stays one
    here = here.absolute() if here is not None else Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


def bytes_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
