"""SHA-256 of buffers and files; every object in the store is known by it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ddl.codec.frame import Buffer


def sha256(buffer: Buffer) -> str:
    """64 hex digits. Other threads run meanwhile: hashing a large buffer lets go of the GIL."""
    return hashlib.sha256(buffer).hexdigest()


def sha256_file(path: Path) -> str:
    """The same of a file, read in parts. Raises: OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
