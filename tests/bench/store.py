"""Objects of 256 MiB through our stores, beside what anybody would do without them.

    just bench store [--json] [--rounds N]

`s3://` against bare boto3 with the same part size, on one SeaweedFS; a directory against
`cp` + `sync FILE` + `sha256sum`. Ours is timed with the SHA-256 that the protocol asks for on either
side of the wire; boto3 is timed without one. Cases take turns. A ratio above 1: ours is faster.
"""

from __future__ import annotations

import io
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from boto3.s3.transfer import TransferConfig

from ddl.codec.digest import sha256, sha256_file
from ddl.config import StoreSettings
from ddl.store.base import Store
from ddl.store.hashed import get_hashed
from ddl.store.local import LocalStore
from ddl.store.open_url import open_url
from tests.bench.report import Figure, Options, options, report, take_turns
from tests.servers import BUCKET, S3Server, start, stop, weed_command

NUM_BYTES = 256 * 1024 * 1024
PART_BYTES = 16 * 1024 * 1024


def mib_per_s(seconds: float) -> float:
    return NUM_BYTES / 2**20 / seconds


def up(store: Store, data: bytes) -> str:
    """What a learner does with a payload in memory."""
    store.put("ours", data)
    return sha256(data)


def up_file(store: Store, file: Path) -> str:
    """What it does with one that lies in the spool."""
    store.put("ours", file)
    return sha256_file(file)


def down(store: Store) -> str:
    return get_hashed(store, "ours").sha256


def in_s3(server: S3Server, folder: Path, data: bytes, asked: Options) -> dict[str, Figure]:
    settings = StoreSettings(endpoint_url=server.endpoint_url, part_bytes=PART_BYTES)
    store = open_url(f"s3://{BUCKET}", settings=settings, environment=server.environment)
    client = server.client()
    config = TransferConfig(
        multipart_threshold=PART_BYTES,
        multipart_chunksize=PART_BYTES,
        preferred_transfer_client="classic",
    )
    file, copy = folder / "source", folder / "copy"
    cases: dict[str, Callable[[], object]] = {
        "up boto3": lambda: client.upload_fileobj(
            io.BytesIO(data), BUCKET, "theirs", Config=config
        ),
        "up": lambda: up(store, data),
        "up_file boto3": lambda: client.upload_file(str(file), BUCKET, "theirs", Config=config),
        "up_file": lambda: up_file(store, file),
        "down boto3": lambda: client.download_fileobj(
            BUCKET, "theirs", io.BytesIO(), Config=config
        ),
        "down": lambda: down(store),
        "down_file boto3": lambda: client.download_file(BUCKET, "theirs", str(copy), Config=config),
        "down_file": lambda: store.get_to_file("ours", copy),
    }
    seconds = take_turns(cases, asked)
    if down(store) != sha256(data):
        raise SystemExit("what came back is not what was written")
    store.close()
    figures: dict[str, Figure] = {}
    for case in ("up", "up_file", "down", "down_file"):
        ratio = seconds[f"{case} boto3"] / seconds[case]
        figures[f"s3.{case}_vs_boto3"] = Figure(ratio, "ratio", 0.8)
        figures[f"s3.{case}_mib_per_s"] = Figure(mib_per_s(seconds[case]), "MiB/s")
    return figures


def in_directory(folder: Path, data: bytes, asked: Options) -> dict[str, Figure]:
    """The same file system for all; every case writes a new file, as a store does."""
    store = LocalStore(folder / "store")
    file, copy = folder / "source", folder / "copied"

    def by_hand() -> None:
        copy.unlink(missing_ok=True)
        commands: list[list[str | Path]] = [["cp", file], ["sync"], ["sha256sum"]]
        for command in commands:
            subprocess.run([*command, copy], check=True, stdout=subprocess.DEVNULL)

    seconds = take_turns({"by hand": by_hand, "ours": lambda: up_file(store, file)}, asked)
    return {
        "file.vs_cp": Figure(seconds["by hand"] / seconds["ours"], "ratio", 0.7),
        "file.up_mib_per_s": Figure(mib_per_s(seconds["ours"]), "MiB/s"),
    }


def main() -> int:
    asked = options(__doc__ or "")
    data = os.urandom(NUM_BYTES)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "source").write_bytes(data)
        figures = in_directory(folder, data, asked)
        process, server = start(*weed_command(folder))
        try:
            figures |= in_s3(server, folder, data, asked)
        finally:
            stop(process)
    return report("store", figures, asked)


if __name__ == "__main__":
    raise SystemExit(main())
