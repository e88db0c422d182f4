"""The alternatives of bench/dedup.py in Spark 4.1: one session, `local[2]`, on the local disk.

A key is two 64-bit hashes of the message id with two seeds: Spark computes and compares them faster than text, and they
take 16 bytes where a UUID takes 36. The comparison favours the alternatives: they look for no repeats within the new
rows; they store a key's arrival but do not compare it, since all keys of the window count; they write rows to no table
unless the method needs one; and a run's additions to the window are removed at no cost, so that every sorted bucket
stays one file, as after a compaction.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from dedup_inputs import Inputs
    from pyspark.sql import DataFrame, SparkSession

BUCKETS = 16
_FILE_KEYS = 4 << 20
_KEY_SCHEMA = pa.schema([("hi", pa.int64()), ("lo", pa.int64()), ("arrived_at", pa.timestamp("us", "UTC"))])


class SparkMethod:
    """The session, the hashes, and a Parquet table of keys, which all alternatives need."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self.keys = inputs.folder / "keys"
        self.out = inputs.folder / "unique"
        self.spark: SparkSession

    def settings(self) -> dict[str, str]:
        """Return the Spark settings."""
        return {
            "spark.driver.memory": "4g",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(self.inputs.folder / "spark"),
            "spark.sql.warehouse.dir": str(self.inputs.folder / "warehouse"),
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.parquet.compression.codec": "zstd",
            "spark.sql.shuffle.partitions": str(BUCKETS),
            "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
        }

    def start(self) -> None:
        from pyspark import SparkConf
        from pyspark.sql import SparkSession

        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        conf = SparkConf().setMaster("local[2]").setAppName("bench-dedup").setAll(list(self.settings().items()))
        self.spark = SparkSession.builder.config(conf=conf).getOrCreate()
        self.spark.sql("SELECT 1").collect()

    def close(self) -> None:
        self.spark.stop()

    def prepare(self) -> None:
        self.keys.mkdir(parents=True)
        self.write_keys(self.keys)

    def write_keys(self, folder: Path) -> None:
        """Write the window as Parquet files of 4 million keys, in the order of arrival."""
        writer: pq.ParquetWriter | None = None
        written = number = 0
        for keys in self.inputs.window.chunks(*self.hashes_of_repeated()):
            if writer is None or written >= _FILE_KEYS:
                if writer is not None:
                    writer.close()
                path = folder / f"part-{number:05}.parquet"
                writer = pq.ParquetWriter(path, _KEY_SCHEMA, compression="zstd", use_dictionary=False)
                written, number = 0, number + 1
            arrived = pa.array(keys.arrived_ms * 1000, _KEY_SCHEMA.field("arrived_at").type)
            columns = [pa.array(keys.hi.view(np.int64)), pa.array(keys.lo.view(np.int64)), arrived]
            writer.write_table(pa.table(columns, schema=_KEY_SCHEMA))
            written += len(keys.hi)
        assert writer is not None
        writer.close()

    def hashes_of_repeated(self) -> tuple[Any, Any]:
        """Return the hashes that Spark computes for the ids of the messages that repeat a key, in their order."""
        ids = self.inputs.new.id_texts(self.inputs.new.repeated).to_pylist()
        rows = self.with_hashes(self.spark.createDataFrame([(i,) for i in ids], "message_id string")).collect()
        by_id = {row.message_id: (row.hi, row.lo) for row in rows}
        hashes = np.array([by_id[i] for i in ids], np.int64).view(np.uint64)
        return hashes[:, 0], hashes[:, 1]

    def with_hashes(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        return rows.withColumns({name: f.xxhash64(f.lit(seed), "message_id") for seed, name in enumerate(("hi", "lo"))})

    def new_rows(self) -> DataFrame:
        """Return the new rows with their hashes."""
        return self.with_hashes(self.spark.read.parquet(*self.inputs.files))

    def window(self) -> DataFrame:
        """Return the hashes of the window's keys."""
        return self.spark.read.schema("hi long, lo long").parquet(str(self.keys))

    def kept_ids(self) -> pa.ChunkedArray:
        written = ds.dataset(self.out, format="parquet")
        return written.to_table(columns=["message_id"], filter=ds.field("message_id").is_valid()).column(0)

    def stored_keys(self) -> int:
        return int(ds.dataset(self.keys, format="parquet").count_rows())

    def index_bytes(self) -> int:
        self.before = set(self.keys.iterdir())
        return sum(path.stat().st_size for path in self.before if path.suffix == ".parquet")

    def server_read_bytes(self) -> int:
        return 0

    def reset(self) -> None:
        for path in set(self.keys.iterdir()) - self.before:
            path.unlink()
        shutil.rmtree(self.out)


class AntiJoin(SparkMethod):
    """Write the new rows whose key is not in the table of keys; Spark chooses the join."""

    def unique_rows(self) -> DataFrame:
        return self.new_rows().join(self.window(), ["hi", "lo"], "left_anti")

    def add_keys(self, keys: DataFrame) -> None:
        keys.write.mode("append").parquet(str(self.keys))

    def run(self) -> Mapping[str, float]:
        from pyspark.sql import functions as f

        self.unique_rows().write.mode("overwrite").parquet(str(self.out))
        # The keys come from three columns of the files that were just written.
        written = self.spark.read.schema("hi long, lo long, kafka_timestamp timestamp").parquet(str(self.out))
        self.add_keys(written.select("hi", "lo", f.col("kafka_timestamp").alias("arrived_at")))
        return {}


class BroadcastKeys(AntiJoin):
    """Broadcast the new keys to the scan of the window, and the repeated ones to the scan of the new rows."""

    def unique_rows(self) -> DataFrame:
        from pyspark.sql import functions as f

        rows = self.new_rows()
        repeated = self.window().join(f.broadcast(rows.select("hi", "lo")), ["hi", "lo"], "left_semi")
        return rows.join(f.broadcast(repeated), ["hi", "lo"], "left_anti")


class BucketedJoin(AntiJoin):
    """Keep the window in buckets by key, each one sorted file; sort the new keys into the same buckets and merge.

    The rows themselves are not shuffled: the repeated keys, some thousand, are broadcast to them.
    """

    TABLE = "window_keys"

    def settings(self) -> dict[str, str]:
        return super().settings() | {
            # Since Spark 3 only this makes Spark use a bucket's order; it is right where a bucket is one file.
            "spark.sql.legacy.bucketedTableScan.outputOrdering": "true",
            # Otherwise Spark would broadcast the small windows or the new keys, which is another method.
            "spark.sql.autoBroadcastJoinThreshold": "-1",
        }

    def prepare(self) -> None:
        raw = self.inputs.folder / "raw"
        raw.mkdir(parents=True)
        self.write_keys(raw)
        self.save(self.spark.read.parquet(str(raw)), "overwrite")
        shutil.rmtree(raw)
        self.keys = self.inputs.folder / "warehouse" / self.TABLE
        self.check_plan()

    def save(self, keys: DataFrame, mode: str) -> None:
        keys = keys.repartition(BUCKETS, "hi", "lo")
        keys.write.mode(mode).bucketBy(BUCKETS, "hi", "lo").sortBy("hi", "lo").saveAsTable(self.TABLE)

    def add_keys(self, keys: DataFrame) -> None:
        self.save(keys, "append")

    def repeated_keys(self) -> DataFrame:
        """Return the new keys that the window has."""
        keys = self.new_rows().select("hi", "lo")
        return keys.join(self.spark.table(self.TABLE).select("hi", "lo").hint("merge"), ["hi", "lo"], "left_semi")

    def unique_rows(self) -> DataFrame:
        from pyspark.sql import functions as f

        return self.new_rows().join(f.broadcast(self.repeated_keys()), ["hi", "lo"], "left_anti")

    def check_plan(self) -> None:
        """Raise `RuntimeError` if Spark's plan shuffles or sorts the window."""
        plan = self.repeated_keys()._jdf.queryExecution().executedPlan().toString()
        below = re.split(r"\n.*SortMergeJoin .*\n", plan, maxsplit=1)
        sides = re.split(r"\n(?=\s*\+- )", below[1]) if len(below) == 2 else []
        (window,) = [side for side in sides if self.TABLE in side] or [plan]
        if not sides or "Exchange" in window or "Sort" in window or f"SelectedBucketsCount: {BUCKETS}" not in window:
            raise RuntimeError(f"Spark shuffles or sorts the window:\n{plan}")

    def reset(self) -> None:
        super().reset()
        self.spark.catalog.refreshTable(self.TABLE)


class IcebergMerge(SparkMethod):
    """Keep the unique rows with their hashes in an Iceberg table, which also stores the keys.

    The window's rows have nothing but the hashes and the arrival; the merge reads only the hashes.
    """

    TABLE = "local.bench.unique"

    def settings(self) -> dict[str, str]:
        from devstack import jars, preflight

        folder = jars.resolve(jars.ICEBERG, preflight.find_java(), lambda line: print(line, file=sys.stderr))
        (runtime,) = folder.glob("iceberg-spark-runtime-*.jar")
        catalog = "spark.sql.catalog.local"
        return super().settings() | {
            "spark.jars": str(runtime),
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            f"{catalog}.type": "hadoop",
            f"{catalog}.warehouse": str(self.inputs.folder / "iceberg"),
        }

    def prepare(self) -> None:
        super().prepare()
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in self.new_rows().schema)
        self.spark.sql(
            f"CREATE TABLE {self.TABLE} ({columns}, arrived_at timestamp) USING iceberg "
            "TBLPROPERTIES ('format-version' = '2', 'write.parquet.compression-codec' = 'zstd')"
        )
        source = f"`parquet`.`{self.keys}`"
        self.spark.sql(f"CALL local.system.add_files(table => 'bench.unique', source_table => '{source}')")
        snapshots = self.spark.sql(f"SELECT snapshot_id FROM {self.TABLE}.snapshots ORDER BY committed_at DESC LIMIT 1")
        self.first_snapshot = int(snapshots.collect()[0][0])

    def run(self) -> Mapping[str, float]:
        from pyspark.sql import functions as f

        self.new_rows().withColumn("arrived_at", f.col("kafka_timestamp")).createOrReplaceTempView("new_rows")
        self.spark.sql(
            f"MERGE INTO {self.TABLE} u USING new_rows n ON u.hi = n.hi AND u.lo = n.lo WHEN NOT MATCHED THEN INSERT *"
        )
        return {}

    def kept_ids(self) -> pa.ChunkedArray:
        rows = self.spark.table(self.TABLE).select("message_id").where("message_id IS NOT NULL")
        return rows.toArrow().column(0)

    def stored_keys(self) -> int:
        return self.spark.table(self.TABLE).count()

    def reset(self) -> None:
        self.spark.sql(f"CALL local.system.rollback_to_snapshot('bench.unique', {self.first_snapshot})")
        shutil.rmtree(self.inputs.folder / "iceberg/bench/unique/data", ignore_errors=True)


class WithinWatermark(SparkMethod):
    """Structured Streaming's `dropDuplicatesWithinWatermark` with RocksDB, as a job that ends (`availableNow`).

    Its state is built by reading the window. Each run starts from its checkpoint, as an hourly job does.
    """

    def __init__(self, inputs: Inputs) -> None:
        super().__init__(inputs)
        self.source, self.checkpoint = inputs.folder / "source", inputs.folder / "checkpoint"
        self.saved = inputs.folder / "saved"

    def settings(self) -> dict[str, str]:
        return super().settings() | {
            "spark.sql.shuffle.partitions": "4",  # fixed for the life of the state
            "spark.sql.streaming.stateStore.providerClass": (
                "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
            ),
            "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
            "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        }

    def prepare(self) -> None:
        self.source.mkdir(parents=True)
        self.write_keys(self.source)
        new = self.spark.read.parquet(*self.inputs.files)
        self.schema = new.schema.add("hi", "long").add("lo", "long").add("arrived_at", "timestamp")
        self.process_source()
        for path in (self.checkpoint, self.out):
            shutil.copytree(path, self.saved / path.name)

    def process_source(self) -> None:
        """Run the stream over the files of the source that it has not read yet."""
        from pyspark.sql import functions as f

        rows = self.spark.readStream.schema(self.schema).parquet(str(self.source))
        hashes = {
            name: f.coalesce(name, f.xxhash64(f.lit(seed), "message_id")) for seed, name in enumerate(("hi", "lo"))
        }
        arrived = f.coalesce("kafka_timestamp", "arrived_at")
        unique = (
            rows.withColumns({**hashes, "arrived_at": arrived})
            .withWatermark("arrived_at", "28 days")
            .dropDuplicatesWithinWatermark(["hi", "lo"])
        )
        query = (
            unique.writeStream.format("parquet")
            .option("path", str(self.out))
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def run(self) -> Mapping[str, float]:
        for number, path in enumerate(self.inputs.files):
            os.link(path, self.source / f"new-{number}.parquet")
        self.process_source()
        return {}

    def stored_keys(self) -> int:
        return int(ds.dataset(self.out, format="parquet").count_rows())

    def index_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self.checkpoint / "state").rglob("*") if path.is_file())

    def reset(self) -> None:
        for path in (self.checkpoint, self.out):
            shutil.rmtree(path)
            shutil.copytree(self.saved / path.name, path)
        for path in self.source.glob("new-*"):
            path.unlink()
