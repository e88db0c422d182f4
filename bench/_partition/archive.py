"""Streams over archives made for a section: config, messages, backup objects, and their removal."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING

from ingest import BUCKET, RUN

if TYPE_CHECKING:
    from waybill.config import Config
    from waybill.store import Store

__all__ = ["BATCH", "PARTITIONS", "config", "keys_of", "put", "remove", "store_of", "table_prefix", "topic_of"]

PARTITIONS = 4
BATCH = 140
"""Messages of a batch: 64 KB, as bench/ingest.py produces them."""


def topic_of(what: str) -> str:
    return f"bench-{os.environ[RUN]}-{what}"


def config(what: str, **partition: object) -> Config:
    """A stream over the archive of topic `what`, with a table of its own: each call partitions from the start."""
    from waybill.config import Config

    stream: dict[str, object] = {
        "topics": [topic_of(what)],
        "upload": {"max_age": "0s"},
        "ingest": {"budget": "10m"},
        "parser": {
            "name": "json",
            "event_time": {"field": "event_time", "format": "epoch_ms"},
            "message_id": "event_id",
        },
        "partition": partition,
        "table": f"bench.t{uuid.uuid4().hex[:12]}",
    }
    once = f"bench-{os.environ[RUN]}"
    return Config.model_validate(
        {
            "version": 1,
            "storage": {"bucket": os.environ[BUCKET], "prefix": once},
            "zookeeper": {"root": once},
            "streams": {what: stream},
        }
    )


def store_of(stream: Config) -> Store:
    from waybill.store import Store

    return Store.of(stream.storage)


def put(what: str, *, messages: int, objects: int, partitions: int = PARTITIONS, per_batch: int = BATCH) -> int:
    """Backup objects that never were in Kafka, with their committed offsets; their bytes."""
    from _events import put_archive

    from waybill.coordination import CommittedOffset, Coordinator
    from waybill.names import TopicPartition

    stream = config(what)
    with store_of(stream) as store, Coordinator.of(stream, what) as coordinator:
        size, ends = put_archive(
            store, topic_of(what), messages=messages, objects=objects, partitions=partitions, per_batch=per_batch
        )
        for partition, end in enumerate(ends):
            coordinator.write_committed(TopicPartition(topic_of(what), partition), CommittedOffset(end, start_offset=0), -1)
    return size


def keys_of(what: str) -> list[str]:
    from waybill import names

    stream = config(what)
    with store_of(stream) as store:
        return list(store.keys(names.backup_prefix(stream.storage.prefix, topic_of(what))))


def remove(prefix: str) -> None:
    """The objects below a prefix of the bucket: what a run has written is of no use to the next."""
    with store_of(config("rivals")) as store:
        keys = [{"Key": key} for key in store.keys(prefix)]
        for start in range(0, len(keys), 1000):
            store.client.delete_objects(Bucket=store.bucket, Delete={"Objects": keys[start : start + 1000]})


def table_prefix(stream: Config, what: str) -> str:
    """Where the files of a stream's table are."""
    from waybill.connections import CatalogEndpoint, S3Endpoint, find_connection
    from waybill.tables import ensure_tables, open_catalog

    endpoint = CatalogEndpoint.of(find_connection(stream.catalog.connection))
    catalog = open_catalog(endpoint, S3Endpoint.of(find_connection(stream.storage.connection)))
    location = ensure_tables(catalog, stream.streams[what]).main.location()
    catalog.close()
    return location.split("/", 3)[3] + "/"
