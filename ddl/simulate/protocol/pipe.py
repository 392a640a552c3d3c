"""One direction of a process' link: what is sent goes through one after the other."""

from __future__ import annotations


class Pipe:
    """Bytes that went through, and when the last of them will have.

    Args:
        mbit: million bits per second.
    """

    def __init__(self, mbit: float) -> None:
        self._bytes_per_s = mbit * 1e6 / 8
        self._free_at = 0.0
        self.num_bytes = 0

    def send(self, num_bytes: int, now: float) -> float:
        """Queue a transfer at `now`; seconds until it is through."""
        self.num_bytes += num_bytes
        self._free_at = max(now, self._free_at) + num_bytes / self._bytes_per_s
        return self._free_at - now

    def reset(self) -> None:
        """The process has ended, and with it all transfers."""
        self._free_at = 0.0
