"""Look up one key in the key index: find the row that dedup kept."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pyarrow as pa

from waybill.config.connections import S3Endpoint, find_connection
from waybill.config.models import Config
from waybill.config.names import TopicPartition
from waybill.tables.dedup.index.lookup import BucketIndex, QuickReads
from waybill.tables.dedup.key_index import open_index
from waybill.tables.dedup.keys import hash_keys, hash_range_of
from waybill.tables.staging.services import StagingServices


def find_kept_row(
    config: Config, name: str, key: Sequence[str], services: StagingServices | None = None
) -> tuple[TopicPartition, int] | None:
    """Return the topic-partition and the offset of the row that dedup kept last of a key, in the window of the index.

    `key`: the values of the key columns, as text. The index compares hashes, so the caller must compare the key of the
    row. None: the index has no such key, or there is no index. `services`: the services to use; by default the function
    opens and closes its own.

    Raises `ConfigError` for a stream without dedup, `IndexDamaged` when a file of the index is missing or changed, or
    one of the retriable `StoreUnavailable` and `CatalogUnavailable`.
    """
    with open_index(config, name, services) as opened:
        manifest = None if opened is None else opened[0].load()
        if opened is None or manifest is None:
            return None
        index, _ = opened
        secret = uuid.UUID(index.identity.unique).bytes
        hashes = hash_keys([pa.array([value], pa.string()) for value in key], secret)
        bucket = int(hash_range_of(hashes.hi, index.identity.buckets)[0])
        tps: list[TopicPartition] = []
        reads = QuickReads(index.store, S3Endpoint.of(find_connection(config.storage.connection)))
        found = BucketIndex(reads, manifest.bucket(bucket), tps).lookup(hashes.hi, hashes.lo, manifest.horizon_ms)
    return (tps[int(found.tp[0])], int(found.offset[0])) if len(found.offset) else None
