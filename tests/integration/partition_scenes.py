"""Archives, configs and tables for the tests of the partition job: real S3, real catalog, backup objects by hand."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.table import Table

from waybill.archive.chain.spans import ArchiveFault
from waybill.config import names
from waybill.config.connections import CatalogEndpoint, S3Endpoint, find_connection
from waybill.config.models import Config, Stream
from waybill.config.names import BackupName, TopicPartition
from waybill.records.batches.encode import Record, encode_batch
from waybill.records.batches.framing import Codec
from waybill.services.store import Store
from waybill.tables.iceberg import open_catalog
from waybill.tables.iceberg.state import ancestry
from waybill.tables.partition.execute import Execute
from waybill.tables.partition.partition_plan import Task
from waybill.tables.partition.partition_report import PartitionReport
from waybill.tables.partition.partition_run import run_partition
from waybill.tables.partition.tasks import Job, TaskResult, run_task

DAY_MS = 86_400_000
Message = tuple[str, int, int, int | None, bytes | None, tuple[tuple[str, bytes | None], ...], bytes | None]
"""Topic, partition, offset, timestamp in ms, key, headers, value."""


def mostly_deep(steps: Sequence[str], *kept: str) -> list[Any]:
    """Return the steps as parameters of a test: those that are not `kept` only for `make test-deep`."""
    return [step if step in kept else pytest.param(step, marks=pytest.mark.deep) for step in steps]


def in_this_process(job: Job, tasks: Sequence[Task]) -> list[TaskResult | ArchiveFault]:
    """Run tasks in this process: the same code as on Spark, without its start-up."""
    return [run_task(job, task) for task in tasks]


def event(offset: int, time_ms: int, **fields: Any) -> Record:
    """Return a message that the scene's parser can read."""
    value = f'{{"id": "id-{offset}", "at": {time_ms}}}'.encode()
    return Record(**{"offset": offset, "timestamp_ms": time_ms + 5, "key": b"key", "value": value} | fields)


def junk(offset: int, time_ms: int = 0) -> Record:
    """Return a message that no JSON parser can read."""
    return Record(offset, time_ms, None, b"\xff junk", (("source", b"test"),))


@dataclass
class Scene:
    """One stream with its own archive and tables."""

    config: Config
    store: Store
    catalog: Catalog
    sent: list[Message] = field(default_factory=list)
    """The messages in the archive, each of which must be in table or quarantine."""

    @property
    def stream(self) -> Stream:
        return self.config.stream("flights")

    @property
    def table(self) -> Table:
        return self.catalog.load_table(self.stream.table)

    @property
    def quarantine(self) -> Table:
        return self.catalog.load_table(names.quarantine_table_name(self.stream.table))

    def put(
        self, tp: TopicPartition, records: Sequence[Record], *, codec: Codec = Codec.ZSTD, batch: int = 100
    ) -> None:
        """Create a backup object of these messages."""
        cuts = [records[n : n + batch] for n in range(0, len(records), batch)]
        self.put_bytes(tp, records[0].offset, b"".join(encode_batch(cut, codec=codec) for cut in cuts), records)

    def put_bytes(self, tp: TopicPartition, first_offset: int, content: bytes, records: Iterable[Record]) -> None:
        """Create a backup object with this content, which holds `records`."""
        name = BackupName(tp.topic, self.stream.generation, tp.partition, first_offset)
        self.store.create_if_absent(name.key(self.store.prefix), content)
        self.sent += [
            (tp.topic, tp.partition, r.offset, r.timestamp_ms, r.key, tuple(r.headers), r.value) for r in records
        ]

    def with_stream(self, **changes: Any) -> Config:
        """Return the config with changes to the stream."""
        document = self.config.model_dump(mode="json")
        document["streams"]["flights"] |= changes
        return Config.model_validate(document)

    def run(
        self, execute: Execute = in_this_process, on_step: Callable[[str], None] = lambda _: None
    ) -> PartitionReport:
        return run_partition(self.config, "flights", execute, on_step=on_step)

    def keys(self, below: str) -> list[str]:
        """Return the keys of the scene's objects below the prefix `below`."""
        prefix = f"{self.store.prefix}/{below}"
        pages = self.store.client.get_paginator("list_objects_v2").paginate(Bucket=self.store.bucket, Prefix=prefix)
        return [o["Key"] for page in pages for o in page.get("Contents", [])]

    def data_files(self) -> set[str]:
        """Return all data files of both tables, referenced or not."""
        found: set[str] = set()
        for table in (self.table, self.quarantine):
            prefix = table.location().removeprefix(f"s3://{self.store.bucket}/") + "/data/"
            pages = self.store.client.get_paginator("list_objects_v2").paginate(Bucket=self.store.bucket, Prefix=prefix)
            found |= {f"s3://{self.store.bucket}/{o['Key']}" for page in pages for o in page.get("Contents", [])}
        return found

    def referenced_files(self) -> set[str]:
        """Return the data files of the current snapshots."""
        return {t.file.file_path for table in (self.table, self.quarantine) for t in table.scan().plan_files()}

    def published_plans(self, table: Table) -> list[str]:
        """Return the plans that readers of the table see, newest first."""
        properties = [s.summary.additional_properties for s in ancestry(table.metadata) if s.summary]
        return [each["waybill.plan"] for each in properties if "waybill.plan" in each]

    def check_exactly_once(self) -> None:
        """Assert that each message of the archive is in table or quarantine exactly once, as it was sent."""
        found = [*messages_in(self.table.scan().to_arrow()), *messages_in(self.quarantine.scan().to_arrow())]
        assert sorted(found, key=lambda m: m[:3]) == sorted(self.sent, key=lambda m: m[:3])

    def rewrite(self) -> None:
        """Replace the table's files by copies in one snapshot, as a compaction does."""
        table = self.table
        with table.transaction() as transaction, transaction.update_snapshot().overwrite() as overwrite:
            for task in table.scan().plan_files():
                path = task.file.file_path.replace(".parquet", "-rewritten.parquet")
                with table.io.new_input(task.file.file_path).open() as old, table.io.new_output(path).create() as new:
                    new.write(old.read())
                overwrite.delete_data_file(task.file)
                overwrite.append_data_file(parquet_file_to_data_file(table.io, table.metadata, path))

    def check_no_file_is_left_over(self) -> None:
        """Assert that the data files are exactly those of the current snapshots."""
        existing, referenced = self.data_files(), self.referenced_files()
        assert existing - referenced == set()
        assert referenced - existing == set()


def messages_in(rows: pa.Table) -> list[Message]:
    """Return the messages that the rows of either table were made of."""
    columns = rows.append_column("at_ms", rows.column("kafka_timestamp").cast(pa.int64()))
    return [
        (
            row["topic"],
            row["partition"],
            row["offset"],
            -1 if row["at_ms"] is None else row["at_ms"] // 1000,
            row["key"],
            tuple((h["key"], h["value"]) for h in row["headers"]),
            row["value"],
        )
        for row in columns.to_pylist()
    ]


def new_scene(**stream: Any) -> Scene:
    """Return a scene with a bucket prefix and tables of its own."""
    unique = uuid.uuid4().hex[:12]
    config = Config.model_validate(
        {
            "version": 1,
            "storage": {"bucket": os.environ["WAYBILL_BUCKET"], "prefix": f"tests/{unique}"},
            "streams": {
                "flights": {
                    "topics": {"regex": r"flights.*"},
                    "parser": {"name": "json", "event_time": {"field": "at", "format": "epoch_ms"}, "message_id": "id"},
                    "table": f"tests.flights_{unique}",
                    "partition_by": "day",
                    "event_time_bounds": {"past": "3650000d"},  # the scenes' events begin in 1970
                }
                | stream
            },
        }
    )
    s3 = S3Endpoint.of(find_connection(config.storage.connection))
    return Scene(
        config,
        Store(s3, config.storage.bucket, config.storage.prefix),
        open_catalog(CatalogEndpoint.of(find_connection(config.catalog.connection)), s3),
    )
