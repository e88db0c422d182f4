"""The files of a key index in memory, and entries of index manifests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from waybill.base.errors import ObjectExists, ObjectMissing
from waybill.tables.dedup.index.sorted_runs import SortedRun

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class MemoryFiles:
    """Replaces a `Store` for the index, without S3: its tests run thousands of times."""

    coalesce_bytes = 64 << 10

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}

    def keys(self, prefix: str) -> Iterator[str]:
        return iter(sorted(key for key in self.contents if key.startswith(prefix)))

    def read(self, key: str) -> bytes:
        if key not in self.contents:
            raise ObjectMissing(key)
        return self.contents[key]

    def read_range(self, key: str, start: int, length_bytes: int) -> bytes:
        return self.read(key)[start : start + length_bytes]

    def create_if_absent(self, key: str, data: Any) -> None:
        if key in self.contents:
            raise ObjectExists(key)
        self.contents[key] = bytes(data)

    def upload_if_absent(self, key: str) -> _Upload:
        return _Upload(self, key)


class _Upload:
    def __init__(self, files: MemoryFiles, key: str) -> None:
        self._files, self._key, self._written = files, key, bytearray()

    def __enter__(self) -> _Upload:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def write(self, data: Any) -> None:
        self._written += bytes(data)

    def complete(self) -> None:
        self._files.create_if_absent(self._key, self._written)


def entry(
    name: str,
    *,
    bucket: int = 0,
    sequences: tuple[int, int] = (1, 1),
    keys: int = 1000,
    arrived: tuple[int, int] = (0, 0),
) -> SortedRun:
    """Return the manifest entry of a sorted run without files: 20 bytes a key, and 2 of its filter."""
    return SortedRun(
        bucket=bucket,
        first_sequence=sequences[0],
        last_sequence=sequences[1],
        keys=keys,
        min_arrived_ms=arrived[0],
        max_arrived_ms=arrived[1],
        path=f"index/runs/{name}.parquet",
        bytes=20 * keys,
        footer_bytes=100,
        footer_crc32c=1,
        filter_path=f"index/runs/{name}.fuse16",
        filter_bytes=2 * keys,
        filter_crc32c=2,
    )
