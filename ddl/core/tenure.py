"""How long a coordinator may count on its lease (design 5). Pure; instants are monotonic seconds.

The lease keeps two coordinators from working side by side; that they cannot harm each other is not
its doing, but that of create-once records. So its rules lean to caution:

* by its own clock the holder is *sure* of the lease for 2/3 of its length from the moment at which
  it asked for the last renewal. After that it writes no record until Redis has confirmed it again;
* it is renewed only while the store takes writes: a holder that is cut off from the store lets it
  run out, so that another may try.
"""

from __future__ import annotations

from typing import Final

SURE_RATIO: Final = 2 / 3
"""Share of the lease's length for which the holder trusts its last renewal."""

RENEWALS: Final = 3
"""Renewals within one length of the lease."""

STORE_SILENCE: Final = 2.0
"""Lengths of the lease without a store write after which it is not renewed."""


class Tenure:
    """One holder's time with its lease, taken or begun at `now`.

    Attributes:
        length_s: of the lease; may be changed at any time.
    """

    def __init__(self, *, length_s: float, now: float) -> None:
        self.length_s = length_s
        self._renewed_at = now
        self._stored_at = now

    @property
    def renew_every_s(self) -> float:
        return self.length_s / RENEWALS

    def renewed(self, asked_at: float) -> None:
        """A renewal that was asked for at `asked_at` was granted, whenever the answer came."""
        self._renewed_at = asked_at

    def stored(self, now: float) -> None:
        """The store took a write."""
        self._stored_at = now

    def is_sure(self, now: float) -> bool:
        """Whether a record may be written now."""
        return now - self._renewed_at < SURE_RATIO * self.length_s

    def should_probe(self, now: float) -> bool:
        """Whether to write something small to the store before the next renewal: nobody else has."""
        return now - self._stored_at >= self.length_s

    def may_renew(self, now: float) -> bool:
        """Whether the store has taken a write lately enough."""
        return now - self._stored_at < STORE_SILENCE * self.length_s
