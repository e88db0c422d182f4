"""The alternatives of bench/partition.py: Spark jobs as people write them, run by spark-submit.

    spark-submit --jars … bench/partition_spark_jobs.py spark-kafka SERVERS TOPIC TARGET [--all-fields]
    spark-submit --jars … bench/partition_spark_jobs.py binary-files OBJECTS TARGET

Both write zstd Parquet files by hour of the event time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

TWO_FIELDS = "event_time bigint, event_id string"
ALL_FIELDS = (
    f"{TWO_FIELDS}, type string, carrier string, flight int, origin string, dest string, "
    "passenger struct<id: int, tier: string>, price double, session string, ip string, agent string, note string"
)
ROWS = (
    "topic string, partition int, offset bigint, kafka_timestamp timestamp, key binary, "
    "headers array<struct<key: string, value: binary>>, value binary, at timestamp, message_id string"
)


def spark_kafka(servers: str, topic: str, target: str, *, all_fields: bool) -> None:
    """Read the topic with Spark's Kafka source in one bounded batch, and parse it with `from_json`.

    The columns are those that Waybill writes, for which `from_json` reads two fields. With `all_fields` it reads all of
    them into columns, and the value is dropped.
    """
    spark = SparkSession.builder.appName("bench-spark-kafka").getOrCreate()
    messages = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .option("includeHeaders", "true")
        .load()
    )
    event = f.from_json(f.col("value").cast("string"), ALL_FIELDS if all_fields else TWO_FIELDS)
    source = ["topic", "partition", "offset", f.col("timestamp").alias("kafka_timestamp"), "key", "headers"]
    fields = ["event.*"] if all_fields else ["value", f.col("event.event_id").alias("message_id")]
    time = f.timestamp_millis(f.col("event.event_time")).alias("at")
    write_by_hour(messages.withColumn("event", event).select(*source, *fields, time), target)
    spark.stop()


def binary_files(objects: str, target: str) -> None:
    """Read the backup objects with `binaryFile`, and decode them in an RDD with kafka-python and `json`."""
    spark = SparkSession.builder.appName("bench-binary-files").getOrCreate()
    files = spark.read.format("binaryFile").load(objects).select("path", "content")
    rows = files.rdd.flatMap(lambda row: rows_of_object(row[0], row[1]))
    write_by_hour(spark.createDataFrame(rows, ROWS, verifySchema=False), target)
    spark.stop()


def rows_of_object(path: str, content: bytes) -> Iterator[tuple[Any, ...]]:
    from kafka.record import MemoryRecords

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


def write_by_hour(rows: DataFrame, target: str) -> None:
    by_hour = rows.withColumn("dt", f.date_format("at", "yyyy-MM-dd")).withColumn("hr", f.date_format("at", "HH"))
    by_hour.write.partitionBy("dt", "hr").parquet(target)


if __name__ == "__main__":
    if sys.argv[1] == "spark-kafka":
        spark_kafka(*sys.argv[2:5], all_fields="--all-fields" in sys.argv)
    else:
        binary_files(*sys.argv[2:4])
