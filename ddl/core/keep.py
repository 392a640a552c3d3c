"""Which objects the settings `[keep]` promise to keep: counted in global versions, never in ages."""

from __future__ import annotations

from itertools import islice

import msgspec

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


class Promise(msgspec.Struct, frozen=True, array_like=True):
    """Settings that were in force until `newest` was the newest global version."""

    keep: KeepSettings
    newest: int


class Promises(msgspec.Struct):
    """What a run has promised all along, though its settings changed on the way.

    What any of them let go may be gone, or be going, whatever the later ones say: a sweep judges by
    the log as it was when the sweep began.

    Attributes:
        made: one for each of the settings that followed another, oldest first.
    """

    made: list[Promise]

    @classmethod
    def genesis(cls, keep: KeepSettings) -> Promises:
        """Those of a run at version 0."""
        return cls([Promise(keep, 0)])

    def note(self, keep: KeepSettings, version: int) -> None:
        """These are in force while `version` is the newest global version."""
        if keep == self.made[-1].keep:
            self.made.pop()
        self.made.append(Promise(keep, version))

    def let_go(self, first: int, last: int) -> Promise | None:
        """By which settings an object of the global versions `first` to `last` may be gone, the
        newest of them; None if it must still be there."""
        for one in reversed(self.made):
            if one.newest < first:
                return None
            if not keeps(one.keep, newest=one.newest, first=first, last=min(last, one.newest)):
                return one
        return None

    def why_gone(self, version: int) -> str:
        """Why a global version, up to the newest, may be gone; empty if it must still be there."""
        let_go = self.let_go(version, version)
        if let_go is None:
            return ""
        keep, is_past = let_go.keep, let_go is not self.made[-1]
        return (
            f"version {version} is not kept: keep.versions = {keep.versions} and keep.every = "
            f"{keep.every}, and the newest version {'was' if is_past else 'is'} {let_go.newest}"
        )

    def nearest(self, version: int) -> tuple[int, ...]:
        """The kept global versions next to one that is not: the one before, and the one after."""
        newest = self.made[-1].newest
        before = (v for v in range(version - 1, -1, -1) if self.hold(v, v))
        after = (v for v in range(version + 1, newest + 1) if self.hold(v, v))
        return (*islice(before, 1), *islice(after, 1))

    def hold(self, first: int, last: int) -> bool:
        """Whether an object of the global versions `first` to `last` must still be there."""
        return self.let_go(first, last) is None

    def hold_contributions(self, version: int) -> bool:
        """Whether what was merged into this global version must still be there."""
        return all(one.keep.contributions == "all" for one in self.made if one.newest >= version)
