"""Check the tables without any code of Waybill.

librdkafka reads the messages in Kafka, PyIceberg lists the tables' files, pyarrow reads their rows, and DuckDB
compares: each message must be in the table exactly once, or in quarantine exactly once if it is junk.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from chaos.checker import Fault
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

JUNK = b"\xff junk"
"""Prefix of the values that are not JSON."""

_SECONDS = 60.0
_MESSAGES = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("key", pa.binary()), ("value", pa.binary())])
_ROWS = "SELECT *, 'table' AS place FROM in_table UNION ALL BY NAME SELECT *, 'quarantine' AS place FROM in_quarantine"


@dataclass
class Checked:
    """The figures and faults of a check."""

    messages: int = 0
    rows: int = 0
    quarantined: int = 0
    snapshots: int = 0
    faults: list[Fault] = field(default_factory=list)


def check(catalog_properties: Mapping[str, str], table: str, topic: str, partitions: int, servers: str) -> Checked:
    """Compare a stream's tables with its topic."""
    in_kafka = _consume(servers, topic, partitions)
    with open_tables(catalog_properties, table) as (main, quarantine):
        in_table, in_quarantine = _rows(main), _rows(quarantine)
        snapshots = len(main.metadata.snapshots) if main is not None else 0
    checked = Checked(in_kafka.num_rows, in_table.num_rows, in_quarantine.num_rows, snapshots)
    with duckdb.connect() as database:
        for name, rows in (("in_kafka", in_kafka), ("in_table", in_table), ("in_quarantine", in_quarantine)):
            database.register(name, rows)
        database.execute(f"CREATE VIEW in_both AS {_ROWS}")
        for kind, query in _QUERIES.items():
            (count, where), *_ = database.execute(query, {"junk": JUNK} if "$junk" in query else None).fetchall()
            if count:
                checked.faults.append(Fault(kind, count, f"{topic}: {where}"))
    return checked


_SOME = "string_agg(partition || '/' || \"offset\", ', ' ORDER BY partition, \"offset\")[:200]"
_QUERIES = {
    "lost": f'SELECT count(*), {_SOME} FROM in_kafka ANTI JOIN in_both USING (partition, "offset")',
    "repeated": f"""SELECT coalesce(sum(copies - 1), 0)::BIGINT, {_SOME} FROM
        (SELECT partition, "offset", count(*) AS copies FROM in_both GROUP BY ALL HAVING copies > 1)""",
    "foreign": f"""SELECT count(*), {_SOME} FROM in_both r WHERE NOT EXISTS (FROM in_kafka k WHERE
        k.partition = r.partition AND k."offset" = r."offset" AND k.key IS NOT DISTINCT FROM r.key
        AND k.value IS NOT DISTINCT FROM r.value)""",
    "misplaced": f"""SELECT count(*), {_SOME} FROM in_both
        WHERE (value[:6] = $junk) <> (place = 'quarantine')""",
}


@contextmanager
def open_tables(properties: Mapping[str, str], name: str) -> Iterator[tuple[Table | None, Table | None]]:
    """Load a stream's table and quarantine by PyIceberg; None for one that does not exist yet."""
    with closing(load_catalog("waybill", **properties)) as catalog:
        yield _load(catalog, f"{name}"), _load(catalog, f"{name}_quarantine")


def _load(catalog: Catalog, name: str) -> Table | None:
    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        return None


def _rows(table: Table | None) -> pa.Table:
    parts = [_MESSAGES.empty_table()]
    for task in table.scan().plan_files() if table is not None else ():
        with table.io.new_input(task.file.file_path).open() as source:
            parts.append(pq.read_table(source, columns=_MESSAGES.names).cast(_MESSAGES))
    return pa.concat_tables(parts)


def _consume(servers: str, topic: str, partitions: int) -> pa.Table:
    found = []
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"checker-{topic}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        left, deadline = set(range(partitions)), time.monotonic() + _SECONDS
        while left:
            if time.monotonic() > deadline:
                raise AssertionError(f"{topic}: Kafka did not return the end of partitions {left} in {_SECONDS:.0f} s")
            for message in consumer.consume(500, timeout=0.1):
                error = message.error()
                if error is None:
                    found.append((message.partition(), message.offset(), message.key(), message.value()))
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                elif not error.retriable():
                    raise KafkaException(error)
    finally:
        consumer.close()
    columns = list(zip(*found, strict=True)) or [()] * len(_MESSAGES)
    return pa.table([pa.array(column, kind) for column, kind in zip(columns, _MESSAGES.types, strict=True)], _MESSAGES)
