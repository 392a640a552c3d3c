"""Numbers of bytes for people."""

from __future__ import annotations

MIB = 1024**2
GIB = 1024**3


def size(num_bytes: float) -> str:
    """In MiB below one GiB, else in GiB: "0.8 MiB", "512 MiB", "77.2 GiB"."""
    value, unit = (num_bytes / GIB, "GiB") if num_bytes >= GIB else (num_bytes / MIB, "MiB")
    return f"{value:.1f} {unit}" if value < 100 else f"{value:.0f} {unit}"
