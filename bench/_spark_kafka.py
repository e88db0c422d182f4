"""bench/partition.py's first rival: Spark's own Kafka source, `from_json`, and Parquet by hour of event time.

    spark-submit --jars … bench/_spark_kafka.py SERVERS TOPIC TARGET [--all-fields]

What a good engineer writes: a bounded batch read, an explicit schema, zstd. The columns are those that Waybill writes,
so `from_json` reads two fields; with `--all-fields` it reads all of them, into columns, and the value is not kept.
"""

from __future__ import annotations

import sys

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

TWO = "event_time bigint, event_id string"
ALL = (
    f"{TWO}, type string, carrier string, flight int, origin string, dest string, "
    "passenger struct<id: int, tier: string>, price double, session string, ip string, agent string, note string"
)


def rows(messages: DataFrame, *, all_fields: bool) -> DataFrame:
    event = f.from_json(f.col("value").cast("string"), ALL if all_fields else TWO)
    parsed = messages.withColumn("event", event)
    time: Column = f.timestamp_millis(f.col("event.event_time"))
    origin = ["topic", "partition", "offset", f.col("timestamp").alias("kafka_timestamp"), "key", "headers"]
    fields = ["event.*"] if all_fields else ["value", f.col("event.event_id").alias("message_id")]
    return (
        parsed.select(*origin, *fields, time.alias("at"))
        .withColumn("dt", f.date_format("at", "yyyy-MM-dd"))
        .withColumn("hr", f.date_format("at", "HH"))
    )


def run(servers: str, topic: str, target: str, *, all_fields: bool) -> None:
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
    rows(messages, all_fields=all_fields).write.partitionBy("dt", "hr").parquet(target)
    spark.stop()


if __name__ == "__main__":
    run(*sys.argv[1:4], all_fields="--all-fields" in sys.argv)
