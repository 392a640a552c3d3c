"""The data plane: objects in memory, whole or not there, created once where asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ddl.errors import ObjectNotFoundError
from ddl.store.base import Body, Mode, ObjectInfo, Progress, check_key


class MemoryStore:
    """See `ddl.store.base.Store`, which holds the contract of every method.

    Attributes:
        objects: by key.
        on_new: told the key of each object that was not there before.
    """

    url = "memory:"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.on_new: Callable[[str], None] = lambda _: None

    def put(
        self,
        key: str,
        body: Body,
        *,
        mode: Mode = "plain",
        progress: Progress | None = None,
    ) -> bool:
        check_key(key)
        data = body.read_bytes() if isinstance(body, Path) else bytes(body)
        is_new = key not in self.objects
        if mode == "create" and not is_new:
            return False
        self.objects[key] = data
        if progress is not None:
            progress(len(data))
        if is_new:
            self.on_new(key)
        return True

    def get(self, key: str, *, progress: Progress | None = None) -> bytearray:
        data = self._object(key)
        if progress is not None:
            progress(len(data))
        return bytearray(data)

    def get_to_file(self, key: str, path: Path, *, progress: Progress | None = None) -> None:
        path.write_bytes(self.get(key, progress=progress))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._object(key)[start : start + length]

    def head(self, key: str) -> ObjectInfo | None:
        data = self.objects.get(key)
        return None if data is None else ObjectInfo(key, len(data), modified_at=0.0)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        for key in sorted(self.objects):
            if key.startswith(prefix) and key > start_after:
                yield ObjectInfo(key, len(self.objects[key]), modified_at=0.0)

    def folders(self) -> Iterator[str]:
        yield from dict.fromkeys(key.split("/")[0] for key in self.objects if "/" in key)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.objects.pop(key, None)

    def sweep_uploads(self, *, older_than_s: float) -> int:  # noqa: ARG002 - nothing is left over
        return 0

    def close(self) -> None:
        """Nothing to free."""

    def _object(self, key: str) -> bytes:
        try:
            return self.objects[key]
        except KeyError:
            raise ObjectNotFoundError(f"{key} is not there") from None
