"""bench/partition.py's second rival: a job over the backup objects, as it is written by hand.

    spark-submit --jars … bench/_binary_files.py OBJECTS TARGET

`binaryFile` reads the objects, kafka-python decodes them record by record, `json` parses each message, and a DataFrame
of the same columns as Waybill's is written as zstd Parquet by hour of event time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from kafka.record import MemoryRecords
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

SCHEMA = (
    "topic string, partition int, offset bigint, kafka_timestamp timestamp, key binary, "
    "headers array<struct<key: string, value: binary>>, value binary, at timestamp, message_id string"
)


def rows(path: str, content: bytes) -> Iterator[tuple[Any, ...]]:
    *_, topic, name = path.split("/")
    partition = int(name.split("_")[1])
    batches = MemoryRecords(content)
    while (batch := batches.next_batch()) is not None:
        for record in batch:
            event = json.loads(record.value)
            yield (
                topic,
                partition,
                record.offset,
                datetime.fromtimestamp(record.timestamp / 1000, UTC),
                record.key,
                record.headers,
                record.value,
                datetime.fromtimestamp(event["event_time"] / 1000, UTC),
                event["event_id"],
            )


def run(objects: str, target: str) -> None:
    spark = SparkSession.builder.appName("bench-binary-files").getOrCreate()
    files = spark.read.format("binaryFile").load(objects).select("path", "content")
    messages = spark.createDataFrame(files.rdd.flatMap(lambda row: rows(row[0], row[1])), SCHEMA, verifySchema=False)
    (
        messages.withColumn("dt", f.date_format("at", "yyyy-MM-dd"))
        .withColumn("hr", f.date_format("at", "HH"))
        .write.partitionBy("dt", "hr")
        .parquet(target)
    )
    spark.stop()


if __name__ == "__main__":
    run(*sys.argv[1:3])
