"""bench/dedup.py's rivals, as a good engineer writes them in Spark 4.1: one session, `local[2]`, on the local disk.

A key is two 64-bit hashes of the message id under two seeds: Spark computes and compares them faster than text, and
they are 16 bytes where a UUID is 36. Kind to the rivals: within a batch they look for no repeats; a key's arrival is
stored but not compared, since all keys of the window count; rows are written to no table unless the method has one; and
what a run adds to the window is taken out again, so that the sorted buckets are always one file each, as after a
compaction, which costs nothing here.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from _dedup_method import Given, Method

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["AntiJoin", "BroadcastKeys", "BucketedJoin", "IcebergMerge", "SparkMethod", "WithinWatermark"]

BUCKETS = 16
_KEYS_PER_FILE = 4 << 20
_KEY_SCHEMA = pa.schema(
    [("hi", pa.int64()), ("lo", pa.int64()), ("arrived_at", pa.timestamp("us", "UTC"))],
)
_WINDOW = "28 days"


class SparkMethod(Method):
    """What the rivals share: the session, hashing, and a Parquet table of keys."""

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self.keys = given.folder / "keys"
        self.out = given.folder / "unique"
        self.spark: SparkSession

    def settings(self) -> dict[str, str]:
        return {
            "spark.driver.memory": "4g",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(self.given.folder / "spark"),
            "spark.sql.warehouse.dir": str(self.given.folder / "warehouse"),
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
        """The window as Parquet files, in the order of arrival."""
        hi, lo = self.hashes_of_repeated()
        writer: pq.ParquetWriter | None = None
        written = number = 0
        for keys in self.given.window.chunks(hi, lo):
            if writer is None or written >= _KEYS_PER_FILE:
                if writer is not None:
                    writer.close()
                path = folder / f"part-{number:05}.parquet"
                writer = pq.ParquetWriter(path, _KEY_SCHEMA, compression="zstd", use_dictionary=False)
                written, number = 0, number + 1
            columns = [
                pa.array(keys.hi.view(np.int64)),
                pa.array(keys.lo.view(np.int64)),
                pa.array(keys.arrived_ms * 1000, _KEY_SCHEMA.field("arrived_at").type),
            ]
            writer.write_table(pa.table(columns, schema=_KEY_SCHEMA))
            written += len(keys.hi)
        assert writer is not None
        writer.close()

    def hashes_of_repeated(self) -> tuple[Any, Any]:
        """As Spark hashes the ids of the messages that repeat a key, in their order."""
        ids = self.given.new.id_texts(self.given.new.repeated).to_pylist()
        frame = self.with_hashes(self.spark.createDataFrame([(i,) for i in ids], "message_id string"))
        found = {row.message_id: (row.hi, row.lo) for row in frame.collect()}
        hashes = np.array([found[i] for i in ids], np.int64).view(np.uint64)
        return hashes[:, 0], hashes[:, 1]

    def with_hashes(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        return rows.withColumns({name: f.xxhash64(f.lit(seed), "message_id") for seed, name in enumerate(("hi", "lo"))})

    def new_rows(self) -> DataFrame:
        """The new rows with their hashes."""
        return self.with_hashes(self.spark.read.parquet(*self.given.files))

    def window(self) -> DataFrame:
        """The window's hashes."""
        return self.spark.read.schema("hi long, lo long").parquet(str(self.keys))

    def kept_ids(self) -> pa.ChunkedArray:
        return ds.dataset(self.out, format="parquet").to_table(columns=["message_id"]).column(0)

    def stored_keys(self) -> int:
        return int(ds.dataset(self.keys, format="parquet").count_rows())

    def index_bytes(self) -> int:
        self.before = set(self.keys.iterdir())
        return sum(path.stat().st_size for path in self.before if path.suffix == ".parquet")

    def reset(self) -> None:
        for path in set(self.keys.iterdir()) - self.before:
            path.unlink()
        shutil.rmtree(self.out)


class Join(SparkMethod):
    """The new rows joined with the table of keys, and their keys added to it."""

    @abstractmethod
    def unique_rows(self) -> DataFrame:
        """The new rows that repeat nothing."""

    def run(self) -> Mapping[str, float]:
        self.unique_rows().write.mode("overwrite").parquet(str(self.out))
        self.add_keys(self.written_keys())
        return {}

    def written_keys(self) -> DataFrame:
        """The keys of the rows that were just written, from three columns of their files."""
        from pyspark.sql import functions as f

        written = self.spark.read.schema("hi long, lo long, kafka_timestamp timestamp").parquet(str(self.out))
        return written.select("hi", "lo", f.col("kafka_timestamp").alias("arrived_at"))

    def add_keys(self, keys: DataFrame) -> None:
        keys.write.mode("append").parquet(str(self.keys))


class AntiJoin(Join):
    """The rows, less those whose key is in the table of keys; Spark chooses how."""

    def unique_rows(self) -> DataFrame:
        return self.new_rows().join(self.window(), ["hi", "lo"], "left_anti")


class BroadcastKeys(Join):
    """The new keys go to everyone who scans the window; what they meet there, to everyone who reads the new rows."""

    def unique_rows(self) -> DataFrame:
        from pyspark.sql import functions as f

        rows = self.new_rows()
        met = self.window().join(f.broadcast(rows.select("hi", "lo")), ["hi", "lo"], "left_semi")
        return rows.join(f.broadcast(met), ["hi", "lo"], "left_anti")


class BucketedJoin(Join):
    """The window lies in buckets by key, each one sorted file; the new keys are brought into the same order and merged
    with them. The rows themselves stay where they are: what the merge finds, some thousand keys, goes to them."""

    TABLE = "window_keys"

    def settings(self) -> dict[str, str]:
        return super().settings() | {
            # Since Spark 3 a bucket's order counts only so; it is right where a bucket is one file.
            "spark.sql.legacy.bucketedTableScan.outputOrdering": "true",
            # Without it, Spark would broadcast the window of the small cases, or the new keys: that is another method.
            "spark.sql.autoBroadcastJoinThreshold": "-1",
        }

    def prepare(self) -> None:
        raw = self.given.folder / "raw"
        raw.mkdir(parents=True)
        self.write_keys(raw)
        self.save(self.spark.read.parquet(str(raw)), "overwrite")
        shutil.rmtree(raw)
        self.keys = self.given.folder / "warehouse" / self.TABLE
        self.check_plan()

    def save(self, keys: DataFrame, mode: str) -> None:
        keys = keys.repartition(BUCKETS, "hi", "lo")
        keys.write.mode(mode).bucketBy(BUCKETS, "hi", "lo").sortBy("hi", "lo").saveAsTable(self.TABLE)

    def add_keys(self, keys: DataFrame) -> None:
        self.save(keys, "append")

    def met(self) -> DataFrame:
        """The new keys that the window has."""
        keys = self.new_rows().select("hi", "lo")
        return keys.join(self.spark.table(self.TABLE).select("hi", "lo").hint("merge"), ["hi", "lo"], "left_semi")

    def unique_rows(self) -> DataFrame:
        from pyspark.sql import functions as f

        return self.new_rows().join(f.broadcast(self.met()), ["hi", "lo"], "left_anti")

    def check_plan(self) -> None:
        """The window is neither shuffled nor sorted. Raises `RuntimeError` with the plan if it is."""
        plan = self.met()._jdf.queryExecution().executedPlan().toString()
        below = re.split(r"\n.*SortMergeJoin .*\n", plan, maxsplit=1)
        sides = re.split(r"\n(?=\s*\+- )", below[1]) if len(below) == 2 else []
        (window,) = [side for side in sides if self.TABLE in side] or [plan]
        if not sides or "Exchange" in window or "Sort" in window or f"SelectedBucketsCount: {BUCKETS}" not in window:
            raise RuntimeError(f"the window is shuffled or sorted:\n{plan}")

    def reset(self) -> None:
        super().reset()
        self.spark.catalog.refreshTable(self.TABLE)


class IcebergMerge(SparkMethod):
    """The table of unique rows is the store of keys: it has their hashes in two columns more. The window's rows have
    nothing but those, which is all that the merge reads of them."""

    TABLE = "local.bench.unique"

    def settings(self) -> dict[str, str]:
        from devstack import jars, preflight

        found = jars.resolve(jars.ICEBERG, preflight.find_java(), lambda line: print(line, file=sys.stderr))
        (runtime,) = found.glob("iceberg-spark-runtime-*.jar")
        catalog = "spark.sql.catalog.local"
        return super().settings() | {
            "spark.jars": str(runtime),
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            f"{catalog}.type": "hadoop",
            f"{catalog}.warehouse": str(self.given.folder / "iceberg"),
        }

    def prepare(self) -> None:
        super().prepare()
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in self.new_rows().schema)
        properties = "'format-version' = '2', 'write.parquet.compression-codec' = 'zstd'"
        arrived = "arrived_at timestamp"
        self.spark.sql(f"CREATE TABLE {self.TABLE} ({columns}, {arrived}) USING iceberg TBLPROPERTIES ({properties})")
        self.spark.sql(
            f"CALL local.system.add_files(table => 'bench.unique', source_table => '`parquet`.`{self.keys}`')"
        )
        self.first = self.newest()

    def newest(self) -> int:
        found = self.spark.sql(f"SELECT snapshot_id FROM {self.TABLE}.snapshots ORDER BY committed_at DESC LIMIT 1")
        return int(found.collect()[0][0])

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
        self.spark.sql(f"CALL local.system.rollback_to_snapshot('bench.unique', {self.first})")
        shutil.rmtree(self.given.folder / "iceberg/bench/unique/data", ignore_errors=True)


class WithinWatermark(SparkMethod):
    """Structured Streaming's own: `dropDuplicatesWithinWatermark` over RocksDB, as a job that ends (`availableNow`).

    Its state is made by feeding it the window. Each run begins as an hourly job does: from its checkpoint.
    """

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self.source, self.checkpoint = given.folder / "source", given.folder / "checkpoint"
        self.kept = given.folder / "kept"

    def settings(self) -> dict[str, str]:
        return super().settings() | {
            "spark.sql.shuffle.partitions": "4",  # for good: the state is cut into as many
            "spark.sql.streaming.stateStore.providerClass": (
                "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
            ),
            "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
            "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        }

    def prepare(self) -> None:
        self.source.mkdir(parents=True)
        self.write_keys(self.source)
        new = self.spark.read.parquet(*self.given.files)
        self.schema = new.schema.add("hi", "long").add("lo", "long").add("arrived_at", "timestamp")
        self.stream()
        for path in (self.checkpoint, self.out):
            shutil.copytree(path, self.kept / path.name)

    def stream(self) -> None:
        from pyspark.sql import functions as f

        rows = self.spark.readStream.schema(self.schema).parquet(str(self.source))
        hashed = {
            name: f.coalesce(name, f.xxhash64(f.lit(seed), "message_id")) for seed, name in enumerate(("hi", "lo"))
        }
        arrived = f.coalesce("kafka_timestamp", "arrived_at")
        unique = (
            rows.withColumns({**hashed, "arrived_at": arrived})
            .withWatermark("arrived_at", _WINDOW)
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
        for number, path in enumerate(self.given.files):
            os.link(path, self.source / f"new-{number}.parquet")
        self.stream()
        return {}

    def kept_ids(self) -> pa.ChunkedArray:
        written = ds.dataset(self.out, format="parquet")
        return written.to_table(columns=["message_id"], filter=ds.field("message_id").is_valid()).column(0)

    def stored_keys(self) -> int:
        return int(ds.dataset(self.out, format="parquet").count_rows())

    def index_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self.checkpoint / "state").rglob("*") if path.is_file())

    def reset(self) -> None:
        for path in (self.checkpoint, self.out):
            shutil.rmtree(path)
            shutil.copytree(self.kept / path.name, path)
        for path in self.source.glob("new-*"):
            path.unlink()
