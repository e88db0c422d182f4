"""Count the rows of each topic-partition of a table: as `waybill ledger` does, and from offsets as `verify` reads them.

    python bench/ledger.py [--rows N] [--files N] [--repeats N] [--json FILE]

The table is on the local disk, in a SQLite catalog: the figures are those of reading columns, without S3. Its files
hold rows of twelve topic-partitions in random order, which no encoding of the column `partition` makes smaller.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measurement import Case, Sample, Work, argument_parser, print_rates, run_cases, run_only_case, write_json
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from waybill.config.names import TopicPartition
from waybill.tables.iceberg.schemas import TABLE_SCHEMA

PARTITIONS = 12
_NULLABLE = {"kafka_timestamp", "key", "value"}
_HEADER = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
_TIME = pa.timestamp("us", tz="UTC")


def open_table(folder: Path) -> Table:
    catalog = SqlCatalog("bench", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
    catalog.create_namespace_if_not_exists("bench")
    return catalog.create_table_if_not_exists("bench.rows", TABLE_SCHEMA)


def write_table(folder: Path, rows: int, files: int) -> None:
    table, random, size = open_table(folder), np.random.default_rng(16), rows // files
    for number in range(files):
        columns = {
            "topic": pa.array(["flights"] * size),
            "partition": pa.array(random.integers(0, PARTITIONS, size), pa.int32()),
            "offset": pa.array(np.arange(number * size, (number + 1) * size)),
            "kafka_timestamp": pa.array(np.arange(size), _TIME),
            "key": pa.nulls(size, pa.binary()),
            "headers": pa.array([[]] * size, pa.list_(pa.field("element", _HEADER, nullable=False))),
            "value": pa.array(np.frombuffer(random.bytes(40 * size), dtype="S40")).cast(pa.binary()),
            "event_time": pa.array(np.arange(size), _TIME),
            "message_id": pa.array(np.arange(size).astype(str)),
            "generation": pa.array(np.ones(size, np.int32)),
        }
        schema = pa.schema([pa.field(name, array.type, name in _NULLABLE) for name, array in columns.items()])
        path = f"{folder}/{number}.parquet"
        pq.write_table(pa.table(list(columns.values()), schema=schema), path, compression="zstd")
        table.add_files([f"file://{path}"], check_duplicate_files=False)


def ledger(_: str, arguments: argparse.Namespace) -> Work:
    from waybill.watch.ledger.rows import RowCounts
    from waybill.watch.verify.offsets import read_columns

    table = open_table(arguments.input)

    def work() -> Sample:
        counts = RowCounts(1)
        counts.add_batches(read_columns(table, ("topic", "partition", "generation")))
        assert len(counts.rows) == PARTITIONS
        return Sample(counts.rows.total(), 0)

    return work


def verify(_: str, arguments: argparse.Namespace) -> Work:
    from waybill.watch.verify.offsets import LAST_OFFSET, by_topic_partition, read_offsets

    table = open_table(arguments.input)

    def work() -> Sample:
        counts: Counter[TopicPartition] = Counter()
        for batch in read_offsets(table, 0, LAST_OFFSET):
            for tp, _, offsets in by_topic_partition(batch):
                counts[tp] += len(offsets)
        assert len(counts) == PARTITIONS
        return Sample(counts.total(), 0)

    return work


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--input", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    cases = [Case("ledger", "rows", ledger), Case("verify", "rows", verify)]
    if arguments.only:
        run_only_case(cases, arguments)
        return
    with tempfile.TemporaryDirectory(prefix="waybill-bench-") as folder:
        print("writing the table …", file=sys.stderr)
        write_table(Path(folder), arguments.rows, arguments.files)
        rows = run_cases(cases, arguments, "--input", folder)
    print_rates(f"Count {arguments.rows:,} rows by topic-partition", rows, baseline="verify")
    write_json(rows, arguments.json)


if __name__ == "__main__":
    main()
