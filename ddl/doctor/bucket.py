"""What only S3-compatible stores can get wrong, each in its own way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddl.doctor.check import Check, fail, ok, warn
from ddl.store.s3_probe import S3Probe

OFFSET_WARN_S: Final = 60.0
"""From 15 minutes on, S3 refuses every request."""


def check_bucket(probe: S3Probe, keys: list[str], *, prefix: str, scratch: str) -> Iterator[Check]:
    """Ask the bucket.

    Args:
        keys: two objects or more that are there, of three bytes or more each.
        prefix: that of `keys`, and of nothing else.
        scratch: a key to write to.
    Raises: StoreError.
    """
    yield ranges(honoured=probe.honours_range(keys[0]))
    yield paging(sorted(probe.pages(prefix)), sorted(keys))
    yield checksums(
        refuses_damage=probe.refuses_damage(scratch),
        objection=probe.objects_to_checksums(scratch),
    )
    offset_s = probe.clock_offset_s(keys[0])
    if offset_s is not None:
        yield clock(offset_s)


def ranges(*, honoured: bool) -> Check:
    name = "store.range"
    if honoured:
        return ok(name, "a part of an object comes alone")
    return warn(
        name,
        "asked for a part of an object, it sends all of it: no broken download goes on where it was",
        "Look for a proxy on the way that drops the Range header, or use another store",
    )


def paging(found: list[str], expected: list[str]) -> Check:
    name = "store.paging"
    if found == expected:
        return ok(name, "lists of several pages are whole")
    return fail(
        name,
        f"of {len(expected)} objects, a list of several pages shows {len(set(found))}",
        "Clean-up and recovery would overlook objects: use another store",
    )


def checksums(*, refuses_damage: bool, objection: str) -> Check:
    """Neither is needed: we send no newer checksums, and check our own digests at every read."""
    found = ["damaged uploads are refused" if refuses_damage else "uploads are not checked"]
    if objection:
        found.append(f"checksums of newer SDKs are refused, so ddl sends none ({objection})")
    else:
        found.append("checksums of newer SDKs are taken")
    return ok("store.checksums", "; ".join(found))


def clock(offset_s: float) -> Check:
    name = "store.clock"
    side = "ahead of" if offset_s > 0 else "behind"
    text = f"this machine's clock is {abs(offset_s):.0f} s {side} the store's"
    if abs(offset_s) < OFFSET_WARN_S:
        return ok(name, text)
    return warn(
        name,
        f"{text}; from 900 s on its requests are refused",
        "Set the clock, for example with `timedatectl set-ntp true`",
    )
