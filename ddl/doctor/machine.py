"""This machine: room on its disks, and the threads it would train with."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ddl.doctor.check import Check, fail, ok, warn
from ddl.doctor.sizes import GIB, MIB, size

ROOM_WARN_BYTES: Final = GIB
ROOM_FAIL_BYTES: Final = 64 * MIB
PROBE_BYTES: Final = MIB

CGROUP_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")
"""Of a container: "QUOTA PERIOD" in microseconds of CPU time, or "max PERIOD"."""


def spool(folder: Path, *, model_bytes: int = 0) -> Check:
    """Whether contributions can wait in `folder`, which need not be there yet.

    `model_bytes` is the size of the run's model in fp32, 0 if it is not known: one contribution of
    every fragment may be waiting.
    """
    name = "machine.spool"
    cure = "Set DDL_SPOOL to a folder on a local disk that this user may write to"
    try:
        there = _nearest(folder)
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return fail(name, f"{folder} cannot be written: {error.strerror}", cure)
    return room(name, folder, needed_bytes=model_bytes, cure="Free space, or set DDL_SPOOL")


def room(
    name: str, folder: Path, *, needed_bytes: int = 0, cure: str = "Free space on its disk"
) -> Check:
    """Whether the disk of `folder` has room for `needed_bytes`, and some more."""
    free = shutil.disk_usage(_nearest(folder)).free
    text = f"{size(free)} free in {folder}"
    if needed_bytes:
        text += f", the model takes {size(needed_bytes)}"
    if free < max(needed_bytes, ROOM_FAIL_BYTES):
        return fail(name, text, cure)
    if free < max(2 * needed_bytes, ROOM_WARN_BYTES):
        return warn(name, text, cure)
    return ok(name, text)


def threads(environment: Mapping[str, str], *, cores: int) -> Check:
    """What OMP_NUM_THREADS makes of `cores` usable ones."""
    name = "machine.threads"
    given = environment.get("OMP_NUM_THREADS", "")
    cure = f"Set OMP_NUM_THREADS={cores}, or less if several learners share this machine"
    if given and not (given.isdigit() and int(given)):
        return warn(name, f"OMP_NUM_THREADS={given!r} is not a number of threads", cure)
    if given and int(given) > cores:
        return warn(name, f"OMP_NUM_THREADS={given} is more than the {cores} usable cores", cure)
    return ok(name, f"{cores} usable cores" + (f", OMP_NUM_THREADS={given}" if given else ""))


def usable_cores(quota: Path = CGROUP_QUOTA) -> int:
    """Cores that this process may keep busy, by its affinity and its container's quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:  # macOS
        cores = os.cpu_count() or 1
    try:
        limit, _, period = quota.read_text().partition(" ")
    except OSError:
        return cores  # no such container
    return cores if limit == "max" else min(cores, max(1, math.ceil(int(limit) / int(period))))


def _nearest(path: Path) -> Path:
    """`path`, or the nearest one above it that is there. Raises: PermissionError."""
    return next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
