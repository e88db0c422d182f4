"""Kinesis for the tests: the emulator kinesis-local in its own process, and streams to be filled, split and merged."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from devstack import preflight
from devstack.control import GuardianHandle
from devstack.jars import JarSet, resolve
from devstack.kinesis import REGION, KinesisEmulator, emulator_home
from devstack.servers import free_ports, log_tail
from waybill.config.connections import Connection, KinesisEndpoint

ACCESS_KEY, SECRET_KEY = "key", "secret"
_READY_SECONDS = 60.0


# Later versions ask STS for the account, which the emulator does not have. This one needs a class that JDK 17 lacks.
KPL = JarSet("kpl", ("com.amazonaws:amazon-kinesis-producer:0.14.13", "javax.xml.bind:jaxb-api:2.3.1"), size_mb=80)


def put_with_kpl(emulator: KinesisEmulator, stream: str, count: int) -> None:
    """Put the numbers below `count` with the Kinesis Producer Library, which aggregates them."""
    java = preflight.find_java()
    command = (
        *(str(java.binary), "-cp", f"{resolve(KPL, java)}/*", str(Path(__file__).with_name("KplProducer.java"))),
        *(str(emulator.tls_port), stream, str(count)),
    )
    environment = os.environ | {"AWS_EC2_METADATA_DISABLED": "true"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@contextmanager
def kinesis_server(directory: Path) -> Iterator[KinesisEmulator]:
    """Start an emulator and yield it as soon as it answers; stop it at the end of the block."""
    (logs := directory / "logs").mkdir(parents=True)
    port, tls_port = free_ports(2)
    emulator = KinesisEmulator(emulator_home(), directory / "kinesis", port, tls_port)
    guardian = GuardianHandle.start(directory)
    try:
        for spec in emulator.specs(logs):
            guardian.start_server(spec)
        deadline = time.monotonic() + _READY_SECONDS
        while (missing := emulator.why_not_ready()) is not None:
            state = guardian.status().server(emulator.name)
            assert state is not None
            if not state.running or time.monotonic() > deadline:
                raise AssertionError(f"{missing}\n{log_tail(Path(state.log))}")
            time.sleep(0.1)
        yield emulator
    finally:
        guardian.shutdown(grace_seconds=0.0)


def kinesis_endpoint(url: str) -> KinesisEndpoint:
    """Return the endpoint as Waybill reads it from an Airflow AWS connection."""
    extra = {"region_name": REGION, "service_config": {"kinesis": {"endpoint_url": url}}}
    return KinesisEndpoint.of(Connection(conn_id="aws_kinesis", login=ACCESS_KEY, password=SECRET_KEY, extra=extra))


def kinesis_client(url: str) -> Any:
    """Return boto3's client, for what producers and administrators do."""
    import boto3

    return boto3.client(
        "kinesis",
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
    )


class FilledStream:
    """A stream of the emulator. Every value that is put is a number of its own, in order."""

    def __init__(self, client: Any, name: str, shards: int) -> None:
        self.client = client
        self.name = name
        self.put_values: list[tuple[str, bytes]] = []
        """Partition key and data of each record, in the order of the puts."""
        client.create_stream(StreamName=name, ShardCount=shards)
        self.wait()

    def put(self, count: int, keys: int = 7) -> None:
        """Put records with some partition keys, one after the other."""
        for _ in range(count):
            number = len(self.put_values)
            self.put_raw(f"key-{number % keys}", b"%d" % number)

    def put_raw(self, key: str, data: bytes) -> None:
        self.client.put_record(StreamName=self.name, PartitionKey=key, Data=data)
        self.put_values.append((key, data))

    def split(self, shard_id: str) -> None:
        """Split a shard in the middle of its range."""
        (shard,) = (each for each in self.shards() if each["ShardId"] == shard_id)
        first, last = (int(shard["HashKeyRange"][f"{end}HashKey"]) for end in ("Starting", "Ending"))
        self.client.split_shard(
            StreamName=self.name, ShardToSplit=shard_id, NewStartingHashKey=str((first + last) // 2 + 1)
        )
        self.wait()

    def merge(self, shard_id: str, adjacent_id: str) -> None:
        self.client.merge_shards(StreamName=self.name, ShardToMerge=shard_id, AdjacentShardToMerge=adjacent_id)
        self.wait()

    def shards(self) -> Sequence[dict[str, Any]]:
        listed: Sequence[dict[str, Any]] = self.client.list_shards(StreamName=self.name)["Shards"]
        return listed

    def wait(self, seconds: float = 20.0) -> None:
        """Return when the stream is active again."""
        self._wait_until(lambda: self._status() == "ACTIVE", seconds)

    def _status(self) -> str:
        summary = self.client.describe_stream_summary(StreamName=self.name)["StreamDescriptionSummary"]
        return str(summary["StreamStatus"])

    def _wait_until(self, check: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not check():
            assert time.monotonic() < deadline, f"stream {self.name} is not active"
            time.sleep(0.05)
