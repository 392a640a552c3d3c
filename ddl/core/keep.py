"""Which objects the settings `[keep]` promise to keep: counted in global versions, never in ages."""

from __future__ import annotations

from ddl.config import KeepSettings


def keeps(keep: KeepSettings, *, newest: int, first: int, last: int) -> bool:
    """Whether an object that belongs to the global versions `first` to `last` is kept.

    Kept are the newest `keep.versions` versions, and every `keep.every`-th one (0: none of these).

    Args:
        newest: the run's newest global version.
    """
    if last > newest - keep.versions:
        return True
    return keeps_for_good(keep, first=first, last=last)


def keeps_for_good(keep: KeepSettings, *, first: int, last: int) -> bool:
    """Whether one of the global versions `first` to `last` is one of every `keep.every`."""
    return keep.every > 0 and last - last % keep.every >= first


class Promises:
    """What a run has promised all along, though its settings changed on the way.

    What any of them let go may be gone, whatever the later ones say.
    """

    def __init__(self, keep: KeepSettings) -> None:
        self._spans: list[tuple[KeepSettings, int]] = [(keep, 0)]

    def note(self, keep: KeepSettings, version: int) -> None:
        """These are in force while `version` is the newest global version."""
        before, _ = self._spans[-1]
        if keep == before:
            self._spans[-1] = (keep, version)
        else:
            self._spans.append((keep, version))

    def hold(self, first: int, last: int) -> bool:
        """Whether an object of the global versions `first` to `last` must still be there."""
        return all(
            keeps(keep, newest=newest, first=first, last=min(last, newest))
            for keep, newest in self._spans
            if newest >= first
        )

    def hold_contributions(self, version: int) -> bool:
        """Whether what was merged into this global version must still be there."""
        return all(keep.contributions == "all" for keep, newest in self._spans if newest >= version)
