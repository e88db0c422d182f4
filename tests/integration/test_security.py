"""Kafka with TLS and SASL, ZooKeeper with digest and TLS: valid clients work, others get a message of one line."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from archived_stream import waybill
from confluent_kafka.admin import AclOperation
from confluent_kafka.admin import ResourceType as KafkaResource
from ingest_scenes import STREAM, Archive, Cluster, one_report
from kafka.protocol.metadata import MetadataRequest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from secured import ALICE, BOB, Certificates, SecuredServers, User, as_environment, secured_servers, tls_proxy

from devstack import Stack
from devstack.s3 import S3Kind
from waybill.archive import ingest
from waybill.base.errors import ConfigError, CoordinationUnavailable, IngestStopped, KafkaUnavailable, WaybillError
from waybill.config.connections import Encryption, KafkaEndpoint, S3Endpoint, ZooKeeperEndpoint, find_connection
from waybill.config.models import load_config
from waybill.config.names import TopicPartition
from waybill.records.batches.encode import Record, encode_batch
from waybill.records.batches.framing import read_frames
from waybill.records.batches.produced import stamp
from waybill.services.coordination import CommittedOffset, Coordinator, ZkPaths, ZooKeeperSession
from waybill.services.kafka.batch_producer import Batches
from waybill.services.kafka.kafka import KafkaSource
from waybill.services.kafka.target import TargetCluster
from waybill.services.store import Store

pytestmark = pytest.mark.integration

BOUND_SECONDS = 40.0
"""No failure may take longer, even on a slow machine: the budget of a lane is longer."""

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "your-own-kafka-and-s3.md"

EVE = User("eve")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServers]:
    with secured_servers(tmp_path_factory.mktemp("secured")) as servers:
        yield servers


@pytest.fixture(scope="module")
def cluster(servers: SecuredServers) -> Cluster:
    return Cluster(f"127.0.0.1:{servers.ports['PLAINTEXT']}")


@dataclass
class Drill:
    """A stream whose connections a test chooses."""

    archive: Archive
    file: Path
    monkeypatch: pytest.MonkeyPatch

    def connect(self, **connections: Mapping[str, Any]) -> None:
        """Set the connections `kafka` and `zookeeper`."""
        named = {f"{name}_default": value for name, value in connections.items()}
        for variable, value in as_environment(**named).items():
            self.monkeypatch.setenv(variable, value)

    def plan(self) -> list[ingest.Lane]:
        return ingest.plan_lanes(load_config(self.file), STREAM)

    def run(self) -> ingest.StreamReport:
        config = load_config(self.file)
        return one_report([ingest.run_lane(config, lane) for lane in self.plan()])

    def lane_failure(self, lane: ingest.Lane) -> str:
        """Run a lane and return why its only topic-partition was not archived."""
        report = ingest.run_lane(load_config(self.file), lane)
        (partition,) = report.failures
        assert partition.failure is not None
        return partition.failure.message

    def waybill(self, *arguments: str) -> tuple[int, str]:
        """Run the CLI and return its exit code and stderr."""
        ran = waybill(*arguments, WAYBILL_CONFIG=str(self.file))
        return ran.code, ran.err


@pytest.fixture
def drill(stack: Stack, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Drill:
    archive = Archive(stack, topic_name, [topic_name])
    file = tmp_path / "streams.yaml"
    file.write_text(archive.config.model_dump_json(exclude_defaults=True))
    return Drill(archive, file, monkeypatch)


@pytest.fixture
def bob(servers: SecuredServers) -> Iterator[User]:
    """A user without ACLs. The health of Kafka covers all topics that a user sees, so none may be left from a test."""
    yield BOB
    servers.revoke_all(BOB)


def refused_within_bound(act: Callable[[], object]) -> WaybillError:
    """Return the error of `act`; check that it is one line, contains no password, and is raised soon."""
    start = time.monotonic()
    with pytest.raises(WaybillError) as raised:
        act()
    assert time.monotonic() - start < BOUND_SECONDS
    message = str(raised.value)
    assert "\n" not in message
    assert not any(user.password in message for user in (ALICE, BOB, EVE))
    return raised.value


# --- valid clients ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["SASL_SSL", "SASL_PLAINTEXT"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_lane_archives_with_sasl(
    servers: SecuredServers,
    cluster: Cluster,
    drill: Drill,
    tp: TopicPartition,
    mechanism: str,
    protocol: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(1)
    cluster.produce(tp, [(None, b"%d" % number) for number in range(50)])
    drill.connect(
        kafka=servers.kafka_as(ALICE, mechanism, protocol),
        zookeeper=servers.zookeeper(ALICE, tls=protocol == "SASL_SSL"),
    )
    assert drill.run().messages == 50
    assert [record.value for record in drill.archive.messages(tp)] == [b"%d" % number for number in range(50)]
    assert drill.waybill("verify", "--no-table") == (0, "")
    assert ALICE.password not in caplog.text
    assert any(record.name.startswith("kafka") for record in caplog.records)  # so the logger was on


def test_lane_archives_with_a_client_certificate(
    servers: SecuredServers, cluster: Cluster, drill: Drill, tp: TopicPartition
) -> None:
    certificate, key, _ = servers.certificates.issue("client", password=ALICE.password)
    own = {
        "ssl_certificate_location": str(certificate),
        "ssl_key_location": str(key),
        "ssl_key_password": ALICE.password,
    }
    cluster.produce(tp, [(None, b"v")] * 3)
    drill.connect(kafka=servers.kafka("SSL", **own), zookeeper=servers.zookeeper())
    assert drill.run().messages == 3
    drill.connect(kafka=servers.kafka("SSL", **own | {"ssl_key_password": "wrong"}))
    error = refused_within_bound(drill.plan)
    assert str(certificate) in str(error)
    drill.connect(kafka=servers.kafka("SSL"))
    assert "refuses our certificate, or the lack of one" in str(refused_within_bound(drill.plan))


def test_fetches_of_many_megabytes_work_over_tls(
    servers: SecuredServers, cluster: Cluster, drill: Drill, tp: TopicPartition
) -> None:
    """Fetch responses of 8 MiB: the selector does not report bytes that OpenSSL has buffered."""
    values = [os.urandom(900_000) for _ in range(60)]
    cluster.produce(tp, [(None, value) for value in values])
    drill.connect(kafka=servers.kafka_as(ALICE, "PLAIN"), zookeeper=servers.zookeeper())
    report = drill.run()
    assert (report.messages, report.failures) == (60, [])
    assert [record.value for record in drill.archive.messages(tp)] == values


def test_client_reads_all_responses_of_one_tls_record(servers: SecuredServers) -> None:
    """A load balancer sends such records. The client would wait forever for a response in OpenSSL's buffer."""
    extra = {"bootstrap.servers": f"127.0.0.1:{servers.ports['proxy']}"}
    found = servers.kafka("SSL")
    found["extra"] |= extra
    with tls_proxy(servers), KafkaSource(endpoint(found), request_timeout=timedelta(seconds=5)) as source:
        cluster = source._cluster
        cluster.describe_topics(None)
        for _ in range(10):
            request = [MetadataRequest(topics=[], allow_auto_topic_creation=False, max_version=8) for _ in range(5)]
            responses = [cluster.wait(each) for each in [cluster.send(1, each) for each in request]]
            assert all(response.brokers for response in responses)


@pytest.mark.parametrize("protocol", ["SASL_SSL", "SASL_PLAINTEXT"])
def test_batches_are_produced_with_sasl(
    servers: SecuredServers, cluster: Cluster, tp: TopicPartition, protocol: str
) -> None:
    """Batches of a megabyte, which the socket takes in pieces, and more of them than may be in flight."""
    servers.allow(ALICE, tp.topic, AclOperation.WRITE)
    with TargetCluster(endpoint(servers.kafka_as(ALICE, "SCRAM-SHA-256", protocol))) as target:
        target.find_topic(tp.topic)
        who = target.producer.new_producer()
        data = []
        for number in range(12):
            batch = encode_batch([Record(0, 1, None, os.urandom(900_000), ())])
            (frame,) = read_frames(io.BytesIO(batch), "made")
            data.append((stamp(frame, who, number), 1))
        target.producer.send(tp, Batches(0, data))
        target.producer.check(tp, flush=True)
        assert target.producer.acknowledged(tp) == 12
        assert target.log.offsets([tp])[tp].end == 12


def endpoint(document: Mapping[str, Any]) -> KafkaEndpoint:
    return KafkaEndpoint.of(find_connection("kafka", as_environment(kafka=document)))


# --- refused clients: Kafka -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", [EVE, User(ALICE.name)], ids=["stranger", "wrong password"])
def test_wrong_kafka_credentials_are_one_line_at_once(
    servers: SecuredServers, drill: Drill, tp: TopicPartition, mechanism: str, user: User
) -> None:
    drill.connect(kafka=servers.kafka_as(user, mechanism), zookeeper=servers.zookeeper())
    error = refused_within_bound(drill.plan)
    assert isinstance(error, ConfigError)
    assert "the credentials are refused" in str(error)
    assert f"Check user '{user.name}', the password and sasl.mechanism of connection 'kafka_default'" in str(error)
    assert user.password not in str(error)
    exit_code, said = drill.waybill("offsets")
    assert exit_code == 1
    assert said.count("\n") == 1
    assert "connection 'kafka_default'" in said


@pytest.fixture(scope="module")
def deaf_port() -> Iterator[int]:
    """A server that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


ODD_KAFKAS: list[tuple[str, str, str, dict[str, str], type[WaybillError], str]] = [
    # Case, protocol of the client, port, more options, error, message.
    ("wrong CA", "SASL_SSL", "SASL_SSL", {"ssl.ca.location": "OTHER"}, ConfigError, "127.0.0.1:.* is not trusted"),
    ("no CA", "SASL_SSL", "SASL_SSL", {"ssl.ca.location": ""}, ConfigError, "is not trusted: .*Check ssl.ca.location"),
    ("another host", "SASL_SSL", "SASL_SSL", {"host": "localhost"}, ConfigError, "is not trusted: Hostname mismatch"),
    (
        "plaintext to TLS",
        "PLAINTEXT",
        "SASL_SSL",
        {},
        ConfigError,
        "Set security.protocol SSL or SASL_SSL in connection",
    ),
    ("TLS to plaintext", "SASL_SSL", "PLAINTEXT", {}, KafkaUnavailable, "the TLS handshake .* failed: .*Is security.p"),
    ("SASL to none", "SASL_PLAINTEXT", "PLAINTEXT", {}, ConfigError, "Check sasl.mechanism and security.protocol of"),
    ("no SASL to SASL", "PLAINTEXT", "SASL_PLAINTEXT", {}, KafkaUnavailable, "disconnected when asked .* Is security."),
    ("deaf, TLS", "SASL_SSL", "deaf", {}, KafkaUnavailable, "the TLS handshake with 127.0.0.1:.* failed"),
    ("deaf", "PLAINTEXT", "deaf", {}, KafkaUnavailable, "timed out"),
    ("no such host", "SASL_SSL", "SASL_SSL", {"host": "no-such-host.invalid"}, KafkaUnavailable, "DNS"),
]


@pytest.mark.deep
@pytest.mark.parametrize(
    ("protocol", "port", "options", "kind", "says"),
    [each[1:] for each in ODD_KAFKAS],
    ids=[each[0] for each in ODD_KAFKAS],
)
def test_kafka_that_does_not_match_the_connection_is_one_line(
    servers: SecuredServers,
    deaf_port: int,
    tmp_path: Path,
    protocol: str,
    port: str,
    options: dict[str, str],
    kind: type[WaybillError],
    says: str,
) -> None:
    sasl = protocol.startswith("SASL")
    document = servers.kafka_as(ALICE, "PLAIN", protocol) if sasl else servers.kafka(protocol)
    options = dict(options)
    host, number = options.pop("host", "127.0.0.1"), deaf_port if port == "deaf" else servers.ports[port]
    if options.get("ssl.ca.location") == "OTHER":
        options["ssl.ca.location"] = str(Certificates(tmp_path / "other").ca)
    document["extra"] |= {"bootstrap.servers": f"{host}:{number}"} | options

    def connect() -> None:
        with KafkaSource(endpoint(document), request_timeout=timedelta(seconds=2)):
            pass

    error = refused_within_bound(connect)
    assert type(error) is kind
    with pytest.raises(kind, match=says):
        raise error
    assert "connection 'kafka'" in str(error)


def test_topic_without_an_acl_is_named(
    servers: SecuredServers, cluster: Cluster, drill: Drill, tp: TopicPartition, bob: User
) -> None:
    cluster.produce(tp, [(None, b"v")] * 5)
    drill.connect(kafka=servers.kafka_as(bob, "SCRAM-SHA-256"), zookeeper=servers.zookeeper())
    error = refused_within_bound(drill.plan)
    assert isinstance(error, ConfigError)
    for part in (tp.topic, "TopicAuthorizationFailed", "user 'bob'", "connection 'kafka_default'"):
        assert part in str(error)
    servers.allow(bob, tp.topic, AclOperation.DESCRIBE)
    (lane,) = drill.plan()
    said = drill.lane_failure(lane)
    for part in (str(tp), "TopicAuthorizationFailed", "user 'bob'", "connection 'kafka_default'"):
        assert part in said
    servers.allow(bob, tp.topic, AclOperation.READ)
    assert drill.run().messages == 5


def test_group_archives_the_topics_that_the_user_may_read_and_names_the_other(
    servers: SecuredServers, cluster: Cluster, drill: Drill, tp: TopicPartition, bob: User
) -> None:
    forbidden = f"{tp.topic}-forbidden"
    cluster.create(forbidden)
    cluster.produce(tp, [(None, b"v")] * 5)
    document = json.loads(drill.file.read_text())
    document["streams"]["other"] = document["streams"][STREAM] | {"topics": [forbidden], "table": "drill.other"}
    drill.file.write_text(json.dumps(document))
    drill.connect(kafka=servers.kafka_as(bob, "SCRAM-SHA-256"), zookeeper=servers.zookeeper())
    for operation in (AclOperation.DESCRIBE, AclOperation.READ):
        servers.allow(bob, tp.topic, operation)
    config = load_config(drill.file)
    plan = ingest.plan_run(config, "default", [STREAM, "other"])
    ((problem,), (lane,)) = (plan.problems, plan.lanes)
    assert (problem.stream, problem.error) == ("other", "ConfigError")
    for part in (forbidden, "TopicAuthorizationFailed", "user 'bob'", "the ACLs Describe and Read"):
        assert part in problem.message
    assert ingest.run_lane(config, lane).messages == 5


# --- ZooKeeper --------------------------------------------------------------------------------------------------------


def nodes(client: KazooClient, path: str) -> dict[str, set[tuple[int, str, str]]]:
    """Return the ACL (permissions, scheme, id) of `path` and of every node below it."""
    acls, _ = client.get_acls(path)
    found = {path: {(acl.perms, acl.id.scheme, acl.id.id.partition(":")[0]) for acl in acls}}
    for child in client.get_children(path):
        found |= nodes(client, f"{path}/{child}")
    return found


@pytest.fixture
def alices_client(servers: SecuredServers) -> Iterator[KazooClient]:
    client = KazooClient(
        f"127.0.0.1:{servers.ports['zookeeper']}", auth_data=[("digest", f"{ALICE.name}:{ALICE.password}")]
    )
    client.start()
    yield client
    client.stop()
    client.close()


def coordinator(document: Mapping[str, Any], root: str, session_seconds: float = 4) -> Coordinator:
    where = ZooKeeperEndpoint.of(find_connection("zookeeper", as_environment(zookeeper=document)))
    return Coordinator(ZooKeeperSession(where, timedelta(seconds=session_seconds)), ZkPaths(root, STREAM, 1))


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(
    ("acl", "expected"),
    [("creator", {(31, "digest", "alice")}), ("creator+read", {(31, "digest", "alice"), (1, "world", "anyone")})],
)
def test_every_zookeeper_node_has_the_acl(
    servers: SecuredServers,
    topic_name: str,
    alices_client: KazooClient,
    tls: bool,
    acl: str,
    expected: set[tuple[int, str, str]],
) -> None:
    """Covers parents, locks and their waiting nodes, committed offsets, stops."""
    document = servers.zookeeper(ALICE, tls=tls, acl=acl) | {"schema": f"chroot-{topic_name}"}
    tps = [TopicPartition("t", number) for number in range(200)]
    with coordinator(document, "root") as held, held.lock(tps[0]):
        for tp in tps:
            held.write_committed(tp, CommittedOffset(committed_offset=7), -1)
        assert len(held.read_all_committed(tps)) == len(tps)  # many answers in one TLS record
        held.record_stop(tps[1], IngestStopped("stopped"))
        found = nodes(alices_client, f"/chroot-{topic_name}")
        assert sum("/locks/t/0/" in path for path in found) == 1
        assert sum("/offsets/t/" in path for path in found) == len(tps)
        assert any("/stops/t/1" in path for path in found)
        assert {frozenset(acls) for acls in found.values()} == {frozenset(expected)}


def test_zookeeper_accepts_a_client_certificate(servers: SecuredServers, topic_name: str) -> None:
    certificate, key, _ = servers.certificates.issue("client")
    own = {"certfile": str(certificate), "keyfile": str(key), "acl": "creator"}
    tp = TopicPartition("t", 0)
    with coordinator(servers.zookeeper(tls=True, **own), topic_name) as ours:
        ours.write_committed(tp, CommittedOffset(committed_offset=7), -1)
        found = ours.read_committed(tp)
        assert found is not None
        assert found.committed_offset == 7
        acls = ours.session.client.get_acls(f"/{topic_name}")[0]
        assert [(acl.perms, acl.id.scheme, acl.id.id) for acl in acls] == [(31, "x509", "CN=client")]
    with coordinator(servers.zookeeper(tls=True), topic_name) as other:
        assert isinstance(refused_within_bound(lambda: other.read_committed(tp)), ConfigError)


def test_documented_way_to_add_acls_later_works(
    servers: SecuredServers, monkeypatch: pytest.MonkeyPatch, alices_client: KazooClient
) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    with coordinator(servers.zookeeper() | {"schema": "data"}, "waybill") as before:
        before.write_committed(TopicPartition("t", 0), CommittedOffset(committed_offset=7), -1)
    monkeypatch.setenv("ZK", f"127.0.0.1:{servers.ports['zookeeper']}")
    monkeypatch.setenv("AUTH", f"{ALICE.name}:{ALICE.password}")
    names: dict[str, Any] = {}
    exec(script, names)
    names["client"].close()
    found = nodes(alices_client, "/data/waybill")
    assert len(found) > 5
    assert {frozenset(acls) for acls in found.values()} == {frozenset({(31, "digest", "alice")})}


def test_other_users_neither_read_nor_write_nodes(servers: SecuredServers, topic_name: str) -> None:
    tp = TopicPartition("t", 0)
    with coordinator(servers.zookeeper(ALICE), topic_name) as ours:
        ours.write_committed(tp, CommittedOffset(committed_offset=7), -1)
    for document in (servers.zookeeper(), servers.zookeeper(EVE), servers.zookeeper(User(ALICE.name))):
        with coordinator(document, topic_name) as other:
            for act in (
                lambda other=other: other.read_committed(tp),
                lambda other=other: other.write_committed(tp, CommittedOffset(committed_offset=9), 0),
                lambda other=other: other.lock(tp).__enter__(),
                lambda other=other: other.list_committed(),
            ):
                error = refused_within_bound(act)
                assert isinstance(error, ConfigError)
                assert "not allowed to" in str(error)
                assert "Check login and password of connection 'zookeeper'" in str(error)
    anonymous = KazooClient(f"127.0.0.1:{servers.ports['zookeeper']}")
    anonymous.start()
    try:
        with pytest.raises(NoAuthError):
            anonymous.get(f"/{topic_name}/streams/{STREAM}/1/offsets/t/0")
    finally:
        anonymous.stop()
        anonymous.close()


def test_wrong_zookeeper_credentials_stop_a_lane_at_once(
    servers: SecuredServers, cluster: Cluster, drill: Drill, tp: TopicPartition
) -> None:
    cluster.produce(tp, [(None, b"v")] * 5)
    drill.connect(kafka=servers.kafka("PLAINTEXT"), zookeeper=servers.zookeeper(ALICE))
    (lane,) = drill.plan()
    assert drill.run().messages == 5
    drill.connect(zookeeper=servers.zookeeper(User(ALICE.name)))
    assert "connection 'zookeeper_default'" in str(refused_within_bound(drill.plan))
    said = drill.lane_failure(lane)
    assert "not allowed to" in said
    assert "connection 'zookeeper_default'" in said
    exit_code, said = drill.waybill("offsets")
    assert exit_code == 1
    assert said.count("\n") == 1


def test_store_without_encryption_support_is_refused(stack: Stack, topic_name: str) -> None:
    if stack.s3.program.kind is not S3Kind.VERSITYGW:
        pytest.skip("moto does as it is told")
    found = S3Endpoint.of(find_connection("aws_default"))
    found = found.model_copy(update={"encryption": Encryption(algorithm="aws:kms")})
    with Store(found, stack.bucket) as store, pytest.raises(ConfigError, match="ignores server_side_encryption"):
        store.create_if_absent(f"{topic_name}/object", b"x")


ODD_ZOOKEEPERS: list[tuple[str, bool, str, dict[str, Any], type[WaybillError], str]] = [
    # Case, whether the client uses TLS, port, more options, error, message.
    ("wrong CA", True, "zookeeper-tls", {"ca": "OTHER"}, ConfigError, "its certificate is not trusted: .* Check ca,"),
    ("another host", True, "zookeeper-tls", {"host": "localhost"}, ConfigError, "not trusted: Hostname mismatch"),
    (
        "plain to TLS",
        False,
        "zookeeper-tls",
        {},
        CoordinationUnavailable,
        "accepts the connection and starts no session",
    ),
    ("TLS to plain", True, "zookeeper", {}, CoordinationUnavailable, "the TLS handshake failed"),
    ("deaf, TLS", True, "deaf", {}, CoordinationUnavailable, "timed out"),
    ("deaf", False, "deaf", {}, CoordinationUnavailable, "accepts the connection and starts no session"),
    ("no such host", True, "zookeeper-tls", {"host": "no-such.invalid"}, CoordinationUnavailable, "does not resolve"),
]


@pytest.mark.deep
@pytest.mark.parametrize(
    ("tls", "port", "options", "kind", "says"),
    [each[1:] for each in ODD_ZOOKEEPERS],
    ids=[each[0] for each in ODD_ZOOKEEPERS],
)
def test_zookeeper_that_does_not_match_the_connection_is_one_line(
    servers: SecuredServers,
    deaf_port: int,
    tmp_path: Path,
    tls: bool,
    port: str,
    options: dict[str, Any],
    kind: type[WaybillError],
    says: str,
) -> None:
    document = servers.zookeeper(ALICE, tls=tls)
    document["port"] = deaf_port if port == "deaf" else servers.ports[port]
    document["host"] = options.get("host", document["host"])
    if options.get("ca") == "OTHER":
        document["extra"]["ca"] = str(Certificates(tmp_path / "other").ca)

    def connect() -> None:
        with coordinator(document, "root", session_seconds=2):
            pass

    error = refused_within_bound(connect)
    assert type(error) is kind
    with pytest.raises(kind, match=says):
        raise error
    assert "connection 'zookeeper'" in str(error)


def test_no_log_line_contains_the_zookeeper_password(
    servers: SecuredServers, topic_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "kazoo")
    with coordinator(servers.zookeeper(ALICE), topic_name) as ours:
        ours.write_committed(TopicPartition("t", 0), CommittedOffset(committed_offset=7), -1)
    assert ALICE.password not in caplog.text


def test_connections_survive_the_transfer_to_another_process(servers: SecuredServers) -> None:
    """Spark's executors receive them this way."""
    before = find_connection("kafka", as_environment(kafka=servers.kafka_as(ALICE, "PLAIN")))
    after = find_connection("kafka", {before.variable: before.to_environment()})
    assert KafkaEndpoint.of(after) == KafkaEndpoint.of(before)
    assert json.loads(before.to_environment())["extra"]["sasl.password"] == ALICE.password


# --- topics as declared -----------------------------------------------------------------------------------------------


def test_plan_of_topics_works_with_describe_alone_and_names_the_missing_acls(
    servers: SecuredServers, cluster: Cluster, drill: Drill, tp: TopicPartition, bob: User
) -> None:
    document = json.loads(drill.file.read_text())
    declared = {"partitions": 2, "replication_factor": 1, "min_insync_replicas": 1}
    document["kafka"] = {"topics": {tp.topic: declared}}
    drill.file.write_text(json.dumps(document))
    drill.connect(kafka=servers.kafka_as(bob, "SCRAM-SHA-256"), zookeeper=servers.zookeeper())

    def plan(command: str = "plan") -> tuple[Any, str]:
        ran = waybill("kafka", *command.split(), "--json", WAYBILL_CONFIG=str(drill.file))
        return (ran.document if ran.out else None), ran.err

    cluster.produce(tp, [(None, b"v")])
    found, _ = plan()
    assert found["steps"] == [], "a topic that is hidden is not created"
    assert "give the ACL Describe on it" in found["refused"][0]["reason"]
    servers.allow(bob, tp.topic, AclOperation.DESCRIBE)
    found, _ = plan()
    assert found["steps"] == [], "copies may be under way, which the user may not list"
    reasons = " ".join(each["reason"] for each in found["refused"])
    assert "ACL DescribeConfigs" in reasons
    assert "ACL Describe on the cluster" in reasons
    servers.allow(bob, tp.topic, AclOperation.DESCRIBE_CONFIGS)
    servers.allow(bob, "kafka-cluster", AclOperation.DESCRIBE, KafkaResource.BROKER)
    found, _ = plan()
    assert [step["step"] for step in found["steps"]] == ["add_partitions"]
    assert found["refused"] == []
    _, said = plan("apply --yes")
    assert "Give user 'bob' of connection 'kafka_default'" in said
    assert f"the ACL Alter on topic {tp.topic!r}" in said
    servers.allow(bob, tp.topic, AclOperation.ALTER)
    servers.allow(bob, tp.topic, AclOperation.ALTER_CONFIGS)
    found, said = plan("apply --yes")
    assert found["left"]["steps"] == [], said


def test_health_works_with_describe_alone_and_names_the_missing_acls(
    servers: SecuredServers, cluster: Cluster, drill: Drill, tp: TopicPartition, bob: User
) -> None:
    group = f"app-{tp.topic}"
    document = json.loads(drill.file.read_text())
    document["kafka"] = {"promises": {"groups": {group: {"limit": 10}}}}
    drill.file.write_text(json.dumps(document))
    drill.connect(kafka=servers.kafka_as(bob, "SCRAM-SHA-256"), zookeeper=servers.zookeeper())
    cluster.produce(tp, [(None, b"v")])

    def promises() -> dict[str, dict[str, Any]]:
        ran = waybill("kafka", "health", "--json", WAYBILL_CONFIG=str(drill.file))
        return {each["promise"]: each for each in ran.document["promises"]}

    hidden = promises()
    assert hidden["missing_topics"]["verdict"] == "unknown", "a hidden topic is not a missing one"
    assert f"Describe on topic {tp.topic!r}" in hidden["access"]["names"]
    servers.allow(bob, tp.topic, AclOperation.DESCRIBE)
    found = promises()
    assert found["offline_partitions"]["verdict"] == found["missing_topics"]["verdict"] == "kept"
    for promise in ("controllers", "disk_used", "group_lag", "unclean_election"):
        assert found[promise]["verdict"] == "unknown", promise
    assert found["access"]["verdict"] == "broken"
    assert set(found["access"]["names"]) == {
        f"DescribeConfigs on topic {tp.topic!r}",
        "Describe on the cluster (log directories)",
        "Describe on the cluster (quorum)",
        f"Describe on group {group!r}",
    }
    servers.allow(bob, tp.topic, AclOperation.DESCRIBE_CONFIGS)
    servers.allow(bob, group, AclOperation.DESCRIBE, KafkaResource.GROUP)
    found = promises()
    assert not any("DescribeConfigs" in acl or "group" in acl for acl in found["access"]["names"])
    assert "does not exist" in found["group_lag"]["detail"]


def test_forecast_needs_describe_alone_and_reports_of_messages_name_the_acl_read(
    servers: SecuredServers, cluster: Cluster, drill: Drill, tp: TopicPartition, bob: User
) -> None:
    cluster.produce(tp, [(None, b"v")])
    plain = {"conn_type": "kafka", "extra": {"bootstrap.servers": f"127.0.0.1:{servers.ports['PLAINTEXT']}"}}
    drill.connect(kafka=plain, zookeeper=servers.zookeeper())
    assert drill.run().failures == []
    drill.connect(kafka=servers.kafka_as(bob, "SCRAM-SHA-256"), zookeeper=servers.zookeeper())
    servers.allow(bob, tp.topic, AclOperation.DESCRIBE)
    ran = waybill("kafka", "what-if", "--broker", "1", "--json", WAYBILL_CONFIG=str(drill.file))
    (stream,) = ran.document["streams"]
    assert (stream["offline"], stream["lost_at_most"]) == (1, 0), ran.err
    assert ran.document["unknown_topics"] == [tp.topic]
    assert "the ACL Describe on the cluster" in ran.document["quorum_error"]
    code, said = drill.waybill("kafka", "losses", STREAM)
    assert (code, said) == (0, ""), "epochs and offsets need Describe alone"
    code, said = drill.waybill("kafka", "producers", tp.topic)
    assert code == 1
    assert "the ACLs Describe and Read on the topic" in said
