"""The local stack, with its real servers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import psutil
import pytest
from botocore.exceptions import ClientError
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kazoo.client import KazooClient

from devstack import Stack
from devstack.control import GuardianHandle
from devstack.s3 import S3Kind, S3Program, S3Server, choose_server
from devstack.servers import free_ports
from waybill.base.errors import StackError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.integration


def wait_until(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not become true in time"
        time.sleep(0.05)


def processes_of(state_dir: Path) -> list[psutil.Process]:
    """Return the running processes whose command line names the state directory: all servers and the guardian."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(state_dir) in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes


def devstack(*arguments: str, state_dir: Path, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "devstack", *arguments],
        env=os.environ | {"WAYBILL_STATE_DIR": str(state_dir)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )


def run_devstack(*arguments: str, state_dir: Path) -> tuple[int, str]:
    with devstack(*arguments, state_dir=state_dir) as process:
        output, _ = process.communicate(timeout=250)
        return process.returncode, output


# --- Kafka, ZooKeeper -------------------------------------------------------------------------------------------------


def test_kafka_replicates_three_times_and_has_no_retention(stack: Stack) -> None:
    admin = KafkaAdminClient(bootstrap_servers=stack.bootstrap_servers.split(","))
    try:
        assert sorted(broker["broker_id"] for broker in admin.describe_cluster()["brokers"]) == [1, 2, 3]
        broker = ConfigResource(ConfigResourceType.BROKER, "1")
        configs = admin.describe_configs([broker], config_filter="all")["broker"]["1"]
    finally:
        admin.close()
    expected = {
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        "transaction.state.log.min.isr": "2",
        "auto.create.topics.enable": "false",
        "log.retention.ms": "-1",
    }
    assert {name: configs[name]["value"] for name in expected} == expected


@pytest.mark.deep
@pytest.mark.stack_alone
def test_killed_broker_restarts_on_its_port(stack: Stack) -> None:
    before = stack.bootstrap_servers
    stack.kill_broker(2)
    wait_until(lambda: stack.kafka.why_brokers_not_ready((1, 3)) is None)
    stack.start_broker(2)
    assert stack.kafka.why_not_ready() is None
    assert stack.bootstrap_servers == before


@pytest.mark.deep
@pytest.mark.stack_alone
def test_zookeeper_restarts_with_its_data_and_empty_after_a_wipe(stack: Stack) -> None:
    def connected() -> KazooClient:
        client = KazooClient(stack.zookeeper_hosts, timeout=5.0)
        client.start(timeout=10)
        return client

    def names(client: KazooClient) -> list[str]:
        try:
            return list(client.get_children("/"))
        finally:
            client.stop()
            client.close()

    first = connected()
    first.create("/devstack-test")
    first.stop()
    first.close()
    stack.kill_zookeeper()
    stack.start_zookeeper()
    assert "devstack-test" in names(connected())
    with pytest.raises(StackError, match="zookeeper is running: stop it before"):
        stack.wipe_zookeeper()
    stack.stop_zookeeper()
    stack.wipe_zookeeper()
    stack.start_zookeeper()
    assert "devstack-test" not in names(connected())


# --- S3 ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=list(S3Kind))
def s3(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[S3Server]:
    """Each of the two S3 servers, if it is available."""
    program = choose_server(lambda _: None)
    if request.param is S3Kind.MOTO:
        program = S3Program(S3Kind.MOTO, Path(sys.executable).with_name("moto_server"))
    elif program.kind is not S3Kind.VERSITYGW:
        pytest.skip("no Go to build versitygw with")
    server = S3Server(program, tmp_path / "s3", free_ports(1)[0], "key", "secret-of-the-test", "bucket")
    guardian = GuardianHandle.start(tmp_path)
    try:
        for spec in server.specs(tmp_path / "logs"):
            guardian.start_server(spec)
        wait_until(lambda: server.why_not_ready() is None)
        yield server
    finally:
        guardian.shutdown(grace_seconds=0.0)


def test_both_s3_servers_refuse_conditional_creates_of_existing_objects(s3: S3Server) -> None:
    """The commit protocol relies on put and multipart completion with If-None-Match."""
    client = boto3.client(
        "s3",
        endpoint_url=s3.endpoint_url,
        aws_access_key_id=s3.access_key,
        aws_secret_access_key=s3.secret_key,
        region_name="us-east-1",
    )

    def complete() -> None:
        upload = client.create_multipart_upload(Bucket="bucket", Key="multi")["UploadId"]
        part = client.upload_part(Bucket="bucket", Key="multi", UploadId=upload, PartNumber=1, Body=b"part")
        client.complete_multipart_upload(
            Bucket="bucket",
            Key="multi",
            UploadId=upload,
            MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]},
            IfNoneMatch="*",
        )

    try:
        client.put_object(Bucket="bucket", Key="single", Body=b"first", IfNoneMatch="*")
        with pytest.raises(ClientError, match="PreconditionFailed"):
            client.put_object(Bucket="bucket", Key="single", Body=b"second", IfNoneMatch="*")
        complete()
        with pytest.raises(ClientError, match="PreconditionFailed"):
            complete()
        assert client.get_object(Bucket="bucket", Key="single")["Body"].read() == b"first"
    finally:
        client.close()


def test_s3_server_can_be_chosen_and_a_wrong_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYBILL_S3_SERVER", "moto")
    assert choose_server(lambda _: None).kind is S3Kind.MOTO
    monkeypatch.setenv("WAYBILL_S3_SERVER", "minio")
    with pytest.raises(StackError, match="WAYBILL_S3_SERVER is 'minio'; it must be versitygw or moto"):
        choose_server(lambda _: None)


def test_without_go_the_choice_is_moto_and_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    messages: list[str] = []
    assert choose_server(messages.append).kind is S3Kind.MOTO
    assert messages == ["S3 is moto's server, in memory: there is no `go` on PATH to build versitygw"]


def test_failed_build_falls_back_to_moto_and_reports_the_cause(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text("#!/bin/sh\necho 'dial tcp: no route to host' >&2\nexit 1\n")
    go.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")
    messages: list[str] = []
    assert choose_server(messages.append).kind is S3Kind.MOTO
    assert "no route to host" in messages[-1]
    assert not list((tmp_path / "waybill").glob("versitygw*/versitygw"))


# --- start and stop ---------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_server_that_ends_at_its_start_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "zookeeper" / "data").mkdir(parents=True)
    (tmp_path / "zookeeper" / "data" / "version-2").write_text("not a directory")
    complaint = r"(?s)^zookeeper ended with exit code \d+ .*zookeeper\.log:\n.*version-2"
    with pytest.raises(StackError, match=complaint), Stack.start(tmp_path):
        pass
    assert processes_of(tmp_path) == []


@pytest.mark.deep
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL], ids=lambda signum: signum.name)
def test_interrupted_up_leaves_no_process(tmp_path: Path, signum: signal.Signals) -> None:
    with devstack("up", "--no-airflow", state_dir=tmp_path) as process:
        log = tmp_path / "guardian.log"
        wait_until(lambda: log.exists() and "started s3" in log.read_text())
        process.send_signal(signum)
        process.communicate(timeout=60)
    wait_until(lambda: processes_of(tmp_path) == [])
    assert process.returncode == (130 if signum == signal.SIGINT else -signal.SIGKILL)


@pytest.mark.deep
def test_second_up_restarts_ended_servers_and_down_leaves_no_process(tmp_path: Path) -> None:
    code, output = run_devstack("up", "--no-airflow", state_dir=tmp_path)
    assert code == 0, output
    assert "kafka is ready after" in output
    stack = Stack.attach(tmp_path)
    assert stack is not None
    try:
        pids = {server.name: server.pid for server in stack.status().servers}
        psutil.Process(pids["zookeeper"]).kill()
        wait_until(lambda: stack.status().server("zookeeper").dead)
        code, output = run_devstack("status", state_dir=tmp_path)
        assert code == 1
        assert "was ended by signal 9" in output

        code, output = run_devstack("up", "--no-airflow", state_dir=tmp_path)
        assert code == 0, output
        assert "The stack is running already" in output
        assert "Started again, since they had ended: zookeeper" in output
        for endpoint in (stack.bootstrap_servers, stack.zookeeper_hosts, stack.s3_endpoint_url):
            assert endpoint in output
        assert {server.name for server in stack.status().servers if server.pid != pids[server.name]} == {"zookeeper"}

        exported = subprocess.run(
            ["/bin/sh", "-c", f". {tmp_path}/env && printenv AIRFLOW_CONN_KAFKA_DEFAULT WAYBILL_BUCKET"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert exported.stdout.splitlines() == [stack.environment()["AIRFLOW_CONN_KAFKA_DEFAULT"], "waybill"]
        assert (tmp_path / "env").stat().st_mode & 0o077 == 0
    finally:
        code, output = run_devstack("down", state_dir=tmp_path)
    assert code == 0
    assert "Stopped kafka-1, kafka-2, kafka-3, zookeeper, s3" in output
    assert processes_of(tmp_path) == []
    assert Stack.attach(tmp_path) is None
    code, output = run_devstack("down", "--wipe", state_dir=tmp_path)
    assert code == 0
    assert "No stack is running" in output
    assert not tmp_path.exists()
