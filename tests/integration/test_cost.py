"""What processes count of their S3 requests, and what `waybill cost` predicts, against the S3 server's access log."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from archived_stream import ArchivedStream, waybill

from devstack import Stack
from devstack.control import GuardianHandle
from devstack.s3 import S3Kind, S3Server, choose_server
from devstack.servers import free_ports
from waybill.base.metering import meter, working_for
from waybill.services.store import Store
from waybill.tables.dedup.execute import InThisProcess
from waybill.tables.dedup.sweep import run_sweep
from waybill.tables.partition.partition_run import run_to_the_end
from waybill.tables.partition.tasks import run_task
from waybill.tables.staging.services import services_of
from waybill.watch.cost import RequestKind, kind_of

pytestmark = pytest.mark.integration

_OPERATION = re.compile(r" s3_(\w+) (\S+) ")
_SERVER_START = frozenset({"ListAllMyBuckets", "CreateBucket", "HeadBucket", "ListBuckets"})


@dataclass(frozen=True)
class LoggedS3:
    """An S3 server of the test's own, with an access log."""

    log: Path

    def requests(self) -> Counter[str]:
        """Return the requests so far by operation, without those by which the server was set up."""
        found = (_OPERATION.search(line) for line in self.log.read_text().splitlines())
        return Counter(each[1] for each in found if each is not None and each[1] not in _SERVER_START)


@pytest.fixture
def logged_s3(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoggedS3]:
    program = choose_server(lambda _: None)
    if program.kind is not S3Kind.VERSITYGW:
        pytest.skip("moto's server has no access log")
    server = S3Server(program, tmp_path / "s3", free_ports(1)[0], "key", "secret-of-the-test", "waybill")
    log = tmp_path / "access.log"
    guardian = GuardianHandle.start(tmp_path)
    try:
        for spec in server.specs(tmp_path / "logs"):
            guardian.start_server(replace(spec, environment={**spec.environment, "VGW_ACCESS_LOG": str(log)}))
        deadline = time.monotonic() + 20
        while server.why_not_ready() is not None:
            assert time.monotonic() < deadline, "the S3 server does not start"
            time.sleep(0.05)
        connection = json.loads(os.environ["AIRFLOW_CONN_AWS_DEFAULT"])
        connection["login"], connection["password"] = server.access_key, server.secret_key
        connection["extra"]["endpoint_url"] = server.endpoint_url
        monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", json.dumps(connection))
        # The catalog of the other tests has tables whose metadata is in the stack's S3 server.
        catalog = json.loads(os.environ["AIRFLOW_CONN_ICEBERG_DEFAULT"])
        catalog["host"] = f"sqlite:///{tmp_path}/catalog.db"
        monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps(catalog))
        yield LoggedS3(log)
    finally:
        guardian.shutdown(grace_seconds=0.0)


def produce_bytes(stream: ArchivedStream, count: int, size_bytes: int, *, partition: int) -> None:
    """Produce events whose text cannot be compressed."""
    producer = stream.producer(**{"message.max.bytes": 4 << 20})
    for number in range(count):
        text = os.urandom(size_bytes // 2).hex()
        value = {"id": f"p{partition}-{number}", "time": "2026-01-02T00:00:00Z", "text": text}
        producer.produce(stream.topic, json.dumps(value).encode(), b"", partition)
        producer.flush(30)  # a batch of its own


def cost(stream: ArchivedStream, *options: str) -> Any:
    ran = waybill("cost", stream.name, *options, "--json", WAYBILL_CONFIG=str(stream.file))
    assert ran.code == 0, ran.err
    return ran.document


def writes(requests: Counter[str] | dict[str, int]) -> int:
    return sum(count for operation, count in requests.items() if kind_of(operation) is RequestKind.WRITE)


def set_limit(stream: ArchivedStream, before: str, after: str) -> None:
    text = stream.file.read_text()
    assert before in text
    stream.file.write_text(text.replace(before, after))


def run_jobs(stream: ArchivedStream) -> None:
    """Run what the Spark jobs run, in this process, and store its usage as they do."""
    config = stream.config
    with services_of(config) as services:
        with working_for(stream.name):
            list(
                run_to_the_end(
                    config, stream.name, lambda job, tasks: [run_task(job, each) for each in tasks], services=services
                )
            )
        services.store_usage("partition", [stream.name])
        with working_for(stream.name):
            run_sweep(config, stream.name, InThisProcess(), services=services)
        services.store_usage("dedup", [stream.name])


def test_counted_and_predicted_writes_are_those_of_the_access_log(
    logged_s3: LoggedS3, topic_name: str, tmp_path: Path
) -> None:
    stream = ArchivedStream(tmp_path, topic_name, max_bytes="20KiB")
    stream.file.write_text(stream.file.read_text() + "    dedup: {}\n")
    with Store.of(stream.config.storage) as store:
        store.probe()  # once a day and bucket: no cost of a stream
    before = logged_s3.requests()
    meter.take_total("before")
    produce_bytes(stream, 300, 18_000, partition=0)
    stream.ingest()
    set_limit(stream, "max_bytes: 20KiB", "max_bytes: 20MiB")
    produce_bytes(stream, 65, 700_000, partition=1)
    stream.ingest()
    run_jobs(stream)
    logged = logged_s3.requests() - before

    report = cost(stream)
    counted = Counter(report["total"]["requests"])
    assert logged["UploadPart"] >= 4
    assert logged["CompleteMultipartUpload"] >= 2
    assert writes(counted) == pytest.approx(writes(logged), rel=0.01)
    for operation in ("PutObject", "UploadPart", "CreateMultipartUpload", "CompleteMultipartUpload"):
        assert counted[operation] == pytest.approx(logged[operation], rel=0.01), operation
    assert sum(counted.values()) == pytest.approx(sum(logged.values()), rel=0.01)

    # What the archive's objects tell of the uploads, with what the jobs have counted, is the log's number, too.
    upload = report["upload"]
    jobs = writes(counted) - upload["counted_writes"]
    assert upload["present"]["writes"] + jobs == pytest.approx(writes(logged), rel=0.01)
    assert report["total"]["messages"] == 365
    assert report["stored_bytes"]["archive"] > 300 * 18_000 + 65 * 700_000
    assert report["stored_bytes"]["unique"] > 0
    assert {"ingest_lane", "partition_driver", "dedup_driver"} <= report["total"]["cpu_seconds"].keys()
    print(f"writes: log {writes(logged)}, counted {writes(counted)}, predicted {upload['present']['writes'] + jobs}")
    print(f"requests: log {dict(logged)}, counted {dict(counted)}")


def test_other_limits_make_the_objects_that_were_predicted(stack: Stack, topic_name: str, tmp_path: Path) -> None:
    stream = ArchivedStream(tmp_path, topic_name, max_bytes="100KiB")
    produce_bytes(stream, 400, 9_000, partition=0)
    stream.ingest()
    predicted = cost(stream, "--max-bytes", "250KiB")["upload"]["other"]
    set_limit(stream, "max_bytes: 100KiB", "max_bytes: 250KiB")
    set_limit(stream, "  events:\n", "  events:\n    generation: 2\n")
    stream.ingest()
    found = cost(stream)["upload"]["present"]
    assert predicted["objects"] == pytest.approx(found["objects"], abs=1)
    assert found["objects"] < 20
