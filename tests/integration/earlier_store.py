"""A store that an earlier version of Waybill wrote: brought back from one file, looked at, and carried on.

The file holds every S3 object, every ZooKeeper node, the Iceberg catalog and the config, as data/README.md describes.
What is asked of the store goes through the command line where there is a command for it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import tarfile
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from archived_stream import Ran, waybill
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient
from ingest_scenes import Cluster
from kazoo.client import KazooClient
from partition_scenes import in_this_process
from pyiceberg.table import Table

from devstack import Stack
from waybill.archive import ingest
from waybill.config.models import Config, load_config
from waybill.config.names import TopicPartition
from waybill.records.batches.encode import Record
from waybill.services.store import Store
from waybill.tables.backfill.kinds import change_backfill
from waybill.tables.backfill.states import BackfillAction
from waybill.tables.dedup.execute import InThisProcess
from waybill.tables.dedup.sweep import run_sweep
from waybill.tables.iceberg import catalog_of
from waybill.tables.iceberg.adoption import find_table
from waybill.tables.partition.partition_run import run_to_the_end

ARCHIVE = "earlier/archive/"
"""What the keys of all objects of the archive start with."""
WAREHOUSE = "warehouse/earlier/"
"""What the keys of all files of the tables start with."""
ROOT = "/waybill/earlier"
"""The ZooKeeper node that all others are below."""
HELD = "held"
"""The stream whose last run was held, in stores that have one."""
START_MS = 1_704_067_200_000
"""2024-01-01T00:00:00Z, when the first message was sent."""

_TOKEN = re.compile(r"(?<=[.\-/])[0-9a-f]{32}(?=\.(?:parquet|fuse16)$)")
_SHOWN = frozenset({"v", "hash", "fields"})
"""Fields of documents whose values say how to read the rest."""
_ADDED = {"store_of_a9ab327.tar.gz": frozenset({"waybill.audit_counts", "audit", "counts"})}
"""Properties of snapshots and fields of documents that the version which wrote a file did not have."""


@dataclass(frozen=True)
class EarlierStore:
    """The store on the stack, and the messages that Kafka holds of its topics."""

    stack: Stack
    directory: Path
    log_ends: Mapping[TopicPartition, int]
    added: frozenset[str]
    """Names that the version which wrote the store did not have."""

    # --- bring it back ------------------------------------------------------------------------------------------------

    @classmethod
    def load(
        cls, file: Path, stack: Stack, directory: Path, *, zookeeper: bool = True, kafka: bool = False
    ) -> EarlierStore:
        """Bring the store back in place of whatever is left of an earlier load.

        `zookeeper`: the nodes as well. `kafka`: the topics as well, with other messages in place of those archived. The
        stored documents then name the new topics' ids.
        """
        contents = contents_of(file)
        log = json.loads(contents["kafka.json"])
        renamed = _create_topics(Cluster(stack.bootstrap_servers), log) if kafka else {}

        def renewed(data: bytes) -> bytes:
            for before, after in renamed.items():
                data = data.replace(before, after)
            return data

        (directory / "streams.yaml").write_bytes(contents["streams.yaml"])
        (directory / "catalog.db").write_bytes(contents["catalog.db"])
        if "replay.db" in contents:
            (directory / "replay.db").write_bytes(contents["replay.db"])
        log_ends = {TopicPartition.parse(tp): end for tp, (_, end) in log["offsets"].items()}
        found = cls(stack, directory, log_ends, _ADDED.get(file.name, frozenset()))
        metadata = json.loads(contents["metadata.json"])
        with found.store() as store:

            def put(key: str) -> None:
                body = contents[f"s3/{key}"]
                body = renewed(body) if "/starts/" in key else body
                store.client.put_object(Bucket=store.bucket, Key=key, Body=body, Metadata=metadata.get(key, {}))

            with ThreadPoolExecutor(4) as pool:
                list(pool.map(store.remove, [*_keys(store, ARCHIVE), *_keys(store, WAREHOUSE)]))
                list(pool.map(put, [name.removeprefix("s3/") for name in contents if name.startswith("s3/")]))
        with _client(stack) as client:
            client.delete(ROOT, recursive=True)
            nodes = json.loads(contents["zookeeper.json"]) if zookeeper else {}
            for path, text in nodes.items():
                client.create(f"{ROOT}/{path}", renewed(text.encode()), makepath=True)
        return found

    def environment(self) -> dict[str, str]:
        """What tells Waybill's code where the store is."""
        extra = {"type": "sql", "warehouse": self.stack.warehouse}
        catalog = {"conn_type": "iceberg", "host": f"sqlite:///{self.directory / 'catalog.db'}", "extra": extra}
        replay = {"conn_type": "sqlite", "host": str(self.directory / "replay.db")}
        return {
            "AIRFLOW_CONN_ICEBERG_DEFAULT": json.dumps(catalog),
            "AIRFLOW_CONN_WAYBILL_REPLAY": json.dumps(replay),
            "WAYBILL_CONFIG": str(self.directory / "streams.yaml"),
        }

    @property
    def config(self) -> Config:
        return load_config(self.directory / "streams.yaml")

    @property
    def has_requests(self) -> bool:
        return (self.directory / "replay.db").exists()

    def store(self) -> Store:
        return Store.of(self.config.storage)

    def waybill(self, *arguments: str, code: int = 0) -> Ran:
        """Run the command line on the store; it ends with that code."""
        ran = waybill(*arguments)
        assert ran.code in (0, code), f"{arguments}: {ran.out}{ran.err}"
        return ran

    def ask(self, *arguments: str, code: int = 0) -> Any:
        return self.waybill(*arguments, "--json", code=code).document

    # --- look at it ---------------------------------------------------------------------------------------------------

    def picture(self) -> dict[str, Any]:
        """All that can be read of the store."""
        return {
            "streams": {name: self._stream_picture(name) for name in self.config.streams},
            "gaps": self.ask("gaps", "ls"),
            "committed": self.ask("offsets", "rebuild", code=1),
            "nodes": self.nodes(),
            "documents": self.documents(),
            "objects": self.object_names(),
            "contents": self.contents(),
            "config": self.config.model_dump(mode="json"),
            "listed": self.ask("streams"),
            "incidents": self.ask("incidents", "ls"),
            "backfills": self.ask("backfill", "status"),
            "audits": self.ask("quality", "history", HELD, "--since", "3650d") if HELD in self.config.streams else [],
            "replays": self.ask("replay", "ls") if self.has_requests else [],
        }

    def _stream_picture(self, name: str) -> dict[str, Any]:
        stream = self.config.stream(name)
        listed = self.ask("ls", name)
        shown = self.waybill("quarantine", "show", name, "--limit", "100000", "--json").out.splitlines()
        return {
            "chains": listed,
            "messages": {entry["key"]: _digest(self.waybill("cat", entry["key"]).out.splitlines()) for entry in listed},
            "verify": self.ask("verify", name, *(["--keys"] if stream.dedup else []), code=1)[0],
            "quarantine": self.ask("quarantine", "ls", name),
            "quarantined": [_without(json.loads(line), {"value", "quarantined_at"}) for line in shown],
            "lateness": self.ask("lateness", name, "--since", "3650d"),
            "dedup": self.ask("dedup", "status", name, "--last", "3650d")[0] if stream.dedup else None,
            "hours": self._hours(name) if stream.sink.is_files else None,
            "tables": self._tables_picture(name),
        }

    def _hours(self, name: str) -> dict[str, Any]:
        found = self.ask("finalize", name, "--dry-run", code=1)
        return {key: value for key, value in found.items() if key not in ("final_before", "behind")}

    def _tables_picture(self, name: str) -> dict[str, Any]:
        stream = self.config.stream(name)
        kinds = ("", "_quarantine", *(("_unique", "_duplicates") if stream.dedup else ()))
        with catalog_of(self.config) as catalog:
            found = {kind: find_table(catalog, f"{stream.table}{kind}", stream.generation) for kind in kinds}
            return {f"{stream.table}{kind}": self._table_picture(table) for kind, table in found.items() if table}

    def _table_picture(self, table: Table) -> dict[str, Any]:
        rows = table.scan().to_arrow().drop_columns([*{"quarantined_at"} & set(table.schema().column_names)])
        order = [(c, "ascending") for c in ("topic", "partition", "offset", "path") if c in rows.column_names]
        ordered = rows.take(pc.sort_indices(rows, sort_keys=order)) if order else rows
        places = [c for c in ("topic", "partition", "offset") if c in rows.column_names]
        snapshots = sorted(table.metadata.snapshots, key=lambda s: s.sequence_number or 0)
        return {
            "rows": rows.num_rows,
            "places": [list(row.values()) for row in ordered.select(places).to_pylist()],
            "content": _digest(json.dumps(row, default=str, sort_keys=True) for row in _known(ordered).to_pylist()),
            "columns": [[f.field_id, f.name, str(f.field_type), f.required] for f in table.schema().fields],
            "partitioning": [[f.source_id, f.field_id, str(f.transform), f.name] for f in table.spec().fields],
            "order": [[f.source_id, str(f.transform), f.direction.value] for f in table.sort_order().fields],
            "properties": {name: value for name, value in table.properties.items() if name.startswith("waybill.")},
            "snapshots": [self._recorded(s.summary.additional_properties) for s in snapshots if s.summary is not None],
        }

    def _recorded(self, summary: Mapping[str, str]) -> dict[str, Any]:
        """The properties of a snapshot that Waybill sets: the names of all, the values of those that count offsets."""
        names = [name for name in sorted(summary) if name.startswith("waybill.") and name not in self.added]
        ours = {name: summary[name] for name in names}
        told = {n: v for n, v in ours.items() if n in ("waybill.stream", "waybill.progress", "waybill.rows")}
        return {"names": list(ours), **told}

    def nodes(self) -> dict[str, Any]:
        """What ZooKeeper has, by path, without the usage of each day."""
        with _client(self.stack) as client:
            nodes = {path: data for path, data in _nodes(client, ROOT) if not path.startswith("usage")}
        return {path: json.loads(data) if data else None for path, data in nodes.items()}

    def documents(self) -> dict[str, Any]:
        """The fields of every JSON document in the archive, in order, and the types of their values."""
        with self.store() as store:
            keys = [key for key in _keys(store, ARCHIVE) if key.endswith(".json")]
            return {key: _shape(json.loads(store.read(key)), self.added) for key in keys}

    def object_names(self) -> dict[str, dict[str, str]]:
        """The names of the archive's objects, without what is random in them, and the objects' metadata."""
        with self.store() as store:
            return {_TOKEN.sub("*", key): _renamed(store.describe(key).metadata) for key in _keys(store, ARCHIVE)}

    def contents(self) -> dict[str, str]:
        """What tells the bytes of a backup object from others, where no library's version has a part in them."""
        with self.store() as store:
            keys = [key for key in _keys(store, f"{ARCHIVE}backup/") if has_fixed_bytes(key)]
            return {key: hashlib.sha256(store.read(key)).hexdigest() for key in keys}

    # --- carry it on --------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Carry out what was planned, staged, left half done, asked for, or left to be decided."""
        for found in self.ask("backfill", "status"):
            self._promote(found["stream"], found["id"], datetime.fromisoformat(found["at"]))
        if self.has_requests:
            self.waybill("replay", "serve")
        if HELD in self.config.streams:
            self.waybill("quality", "release", HELD, "--reason", "known", "--by", "ann")
        for name, stream in self.config.streams.items():
            for report in run_to_the_end(self.config, name, in_this_process):
                assert not report.faults, report.faults
            if not stream.sink.is_files:
                self.waybill("quarantine", "retry", name)
            if stream.dedup:
                self._sweep(name)

    def _promote(self, name: str, backfill: str, at: datetime) -> None:
        """Promote as of that time: the files of an old backfill are no longer kept."""
        action = BackfillAction.PROMOTE
        change_backfill(self.config, name, backfill, action, by="ann", reason="agreed", now=lambda: at)

    def go_on(self) -> None:
        """Archive new messages behind the old ones, and take them all the way."""
        cluster = Cluster(self.stack.bootstrap_servers)
        self.waybill("gaps", "accept", "earlier.clicks", "0", "--reason", "the disk was full", "--by", "ann")
        for tp, end in self.log_ends.items():
            # In one batch, so that the objects' bytes are the same each time.
            cluster.produce(tp, [message(tp, offset) for offset in range(end, end + 10)], linger_ms=1000)
        for name, stream in self.config.streams.items():
            self.ingest(name)
            for report in run_to_the_end(self.config, name, in_this_process):
                assert not report.faults, report.faults
            if stream.dedup:
                self._sweep(name)
                self.waybill("dedup", "merge", name)
            if stream.sink.is_files:
                self.waybill("finalize", name)

    def ingest(self, name: str) -> None:
        reports = [ingest.run_lane(self.config, lane) for lane in ingest.plan_lanes(self.config, name)]
        assert not any(report.failures for report in reports), reports

    def _sweep(self, name: str) -> None:
        while (report := run_sweep(self.config, name, InThisProcess())).resumed or report.more:
            pass


def contents_of(file: Path) -> dict[str, bytes]:
    """What is packed in the file, by name."""
    with tarfile.open(file) as archive:
        return {member.name: _content(archive, member) for member in archive if member.isfile()}


def has_fixed_bytes(key: str) -> bool:
    """Whether nothing of a backup object is compressed by us, or random."""
    return key.endswith((".kafka", ".txt")) and "/earlier.flights" not in key


def message(tp: TopicPartition, offset: int, **fields: Any) -> Record:
    """An event that the config's parsers read. Every seventh repeats the id of the one before; every ninth is junk."""
    time_ms = START_MS + 600_000 * offset
    if offset % 9 == 8:
        return Record(offset, time_ms, None, b"\xff no JSON", (("source", b"test"), ("none", None)))
    value = {"id": f"{tp}-{offset - (offset % 7 == 6)}", "at": time_ms, "carrier": "AB"[offset % 2]}
    value |= (
        {"delay": offset / 4}
        | {"price": f"{offset}.25", "tags": ["t", None], "day": "2024-02-29", "seats": offset}
        | fields
    )
    return Record(offset, time_ms + 250, f"key {offset}".encode(), json.dumps(value).encode(), (("h", b"1"),))


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file is not None
    return file.read()


@contextmanager
def _client(stack: Stack) -> Iterator[KazooClient]:
    client = KazooClient(stack.zookeeper_hosts)
    client.start(timeout=20)
    try:
        client.ensure_path(ROOT)
        yield client
    finally:
        client.stop()
        client.close()


def _nodes(client: KazooClient, path: str) -> Iterator[tuple[str, bytes]]:
    """All nodes below a path, by what follows the root."""
    for child in sorted(client.get_children(path)):
        yield f"{path}/{child}".removeprefix(f"{ROOT}/"), client.get(f"{path}/{child}")[0]
        yield from _nodes(client, f"{path}/{child}")


def _keys(store: Store, prefix: str) -> list[str]:
    pages = store.client.get_paginator("list_objects_v2").paginate(Bucket=store.bucket, Prefix=prefix)
    return [found["Key"] for page in pages for found in page.get("Contents", [])]


def _create_topics(cluster: Cluster, log: Mapping[str, Any]) -> dict[bytes, bytes]:
    """Topics with as many messages as the old ones had; the old topics' ids, and theirs."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for topic in log["partitions"].keys() & admin.list_topics(timeout=20).topics.keys():
        cluster.delete(topic)
    for topic, partitions in log["partitions"].items():
        cluster.create(topic, partitions, retention_ms=-1)
    for text, (start, end) in log["offsets"].items():
        tp = TopicPartition.parse(text)
        # In one batch, also on a busy machine: an object that starts inside a batch counts all messages of the batch.
        cluster.produce(tp, [message(tp, offset) for offset in range(end)], linger_ms=1000)
        if start:
            cluster.delete_records(tp, start)
    ids = topic_ids(cluster, log["ids"])
    return {log["ids"][topic].encode(): ids[topic].encode() for topic in ids}


def topic_ids(cluster: Cluster, topics: Any) -> dict[str, str]:
    """The ids that Kafka gave to topics, as stored documents have them."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    found = admin.describe_topics(TopicCollection(list(topics)), request_timeout=20)
    ids = {topic: str(future.result().topic_id) for topic, future in found.items()}
    # Kafka's tools print ids in Base64.
    return {topic: str(uuid.UUID(bytes=base64.urlsafe_b64decode(f"{text}=="))) for topic, text in ids.items()}


def _known(rows: Any) -> Any:
    """Rows without the columns of a ledger that name a run's files and when they were made."""
    return rows.drop_columns([c for c in ("path", "etag", "size_bytes", "sha256") if c in rows.column_names])


def _renamed(metadata: Mapping[str, str]) -> dict[str, str]:
    """An object's metadata; `index` is also what a part of a picture is called."""
    return {"index-object" if name == "index" else name: value for name, value in metadata.items()}


def _shape(document: Any, added: frozenset[str]) -> Any:
    if isinstance(document, dict):
        known = {name: value for name, value in document.items() if name not in added}
        return [[name, value if name in _SHOWN else _shape(value, added)] for name, value in known.items()]
    if isinstance(document, list):
        return [_shape(document[0], added)] if document else []
    return type(document).__name__


def _digest(lines: Any) -> list[Any]:
    """How many lines there are, and what tells them from others."""
    found = list(lines)
    return [len(found), hashlib.sha256("\n".join(found).encode()).hexdigest()]


def _without(document: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in names}
