"""Register the data source `waybill_backup` in a session: the archive as a DataFrame, before any parsing.

    from backup_source import register
    register(spark)
    spark.read.format("waybill_backup").option("stream", "flights").load()

`waybill.tables.spark.source` describes options and columns. As a script it counts a stream's messages by
topic-partition:

    spark-submit spark_jobs/backup_source.py flights
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from waybill.config.models import load_config
from waybill.tables.spark.session import connection_ids, spark_session
from waybill.tables.spark.source import WaybillBackup


def register(spark: SparkSession) -> None:
    """Register the format `waybill_backup` in a session."""
    spark.dataSource.register(WaybillBackup)


def main(stream: str) -> None:
    """Print the number of archived messages by topic-partition."""
    spark = spark_session(f"waybill-count-{stream}", connection_ids(load_config()))
    register(spark)
    messages = spark.read.format("waybill_backup").option("stream", stream).load()
    messages.groupBy("topic", "partition").count().orderBy("topic", "partition").show(1000)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: backup_source.py STREAM")
    main(sys.argv[1])
