"""Objects of 256 MiB through `s3://` and through bare boto3, on the same server and part size.

    just bench store [ROUNDS]

Prints MiB/s of each round, medians, and CPU seconds of this process. The two take turns, because
what else runs on the machine changes the figures more than anything here. Ours includes the fsync
of files; boto3's does not.
"""

from __future__ import annotations

import io
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from boto3.s3.transfer import TransferConfig

sys.path.insert(0, str(Path(__file__).parents[2]))

from ddl.config import StoreSettings
from ddl.store.open_url import open_url
from tests.servers import BUCKET, S3Server, start, stop, weed_command

NUM_BYTES = 256 * 1024 * 1024
PART_BYTES = 16 * 1024 * 1024


def main(num_rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        process, server = start(*weed_command(folder))
        try:
            measure(server, folder, num_rounds)
        finally:
            stop(process)


def measure(server: S3Server, folder: Path, num_rounds: int) -> None:
    settings = StoreSettings(endpoint_url=server.endpoint_url, part_bytes=PART_BYTES)
    store = open_url(f"s3://{BUCKET}", settings=settings, environment=server.environment)
    client = server.client()
    config = TransferConfig(
        multipart_threshold=PART_BYTES,
        multipart_chunksize=PART_BYTES,
        preferred_transfer_client="classic",
    )
    data = os.urandom(NUM_BYTES)
    file = folder / "source"
    file.write_bytes(data)
    cases: dict[str, Callable[[], object]] = {
        "up, memory: boto3": lambda: client.upload_fileobj(
            io.BytesIO(data), BUCKET, "theirs", Config=config
        ),
        "up, memory: ours": lambda: store.put("ours", data),
        "up, file:   boto3": lambda: client.upload_file(str(file), BUCKET, "theirs", Config=config),
        "up, file:   ours": lambda: store.put("ours", file),
        "down, memory: boto3": lambda: client.download_fileobj(
            BUCKET, "theirs", io.BytesIO(), Config=config
        ),
        "down, memory: ours": lambda: store.get("ours"),
        "down, file:   boto3": lambda: client.download_file(
            BUCKET, "theirs", str(folder / "copy"), Config=config
        ),
        "down, file:   ours": lambda: store.get_to_file("ours", folder / "copy"),
    }
    rates: dict[str, list[float]] = {case: [] for case in cases}
    seconds: dict[str, list[float]] = {case: [] for case in cases}
    for _ in range(num_rounds):
        for case, run in cases.items():
            begin, cpu = time.perf_counter(), time.process_time()
            run()
            rates[case].append(NUM_BYTES / 2**20 / (time.perf_counter() - begin))
            seconds[case].append(time.process_time() - cpu)
    if store.get("ours") != data:
        raise SystemExit("what came back is not what was written")
    store.close()
    for case in cases:
        each = " ".join(f"{rate:4.0f}" for rate in rates[case])
        print(
            f"{case:20} {statistics.median(rates[case]):5.0f} MiB/s  ({each})  "
            f"{statistics.median(seconds[case]):.2f} s CPU"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
