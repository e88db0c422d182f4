"""Servers with access control: one Kafka broker and one ZooKeeper with TLS, SASL and ACLs.

They are not part of the stack of the other tests, which stays as fast and simple as a stack on a laptop. Four listeners
of the broker have the four security protocols. In front of a fifth, a proxy ends TLS as a load balancer does. The
authorizer denies everything that no ACL allows.
"""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import json
import shlex
import ssl
import threading
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
)
from confluent_kafka.admin import ResourceType as KafkaResource
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from devstack import jars, preflight
from devstack.control import GuardianHandle
from devstack.jars import write_log4j_config
from devstack.servers import ServerSpec, free_ports, log_tail
from devstack.zookeeper import ZooKeeper

_READY_SECONDS = 120.0
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_HOLD_BACK_SECONDS = 0.02
_COPY_BYTES = 8 << 10


@dataclass(frozen=True)
class User:
    """A user of Kafka, for PLAIN and both SCRAM mechanisms."""

    name: str
    password: str = field(default_factory=lambda: f"secret-{uuid.uuid4().hex}")


ALICE = User("alice")
"""May do everything."""
BOB = User("bob")
"""May do what an ACL allows."""


# --- certificates -----------------------------------------------------------------------------------------------------


class Certificates:
    """A certificate authority, which writes certificates as PEM files to `directory`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"CA {directory.name}")])
        self._certificate = self._sign(self._name, self._key.public_key(), [], authority=True)
        self.ca = self._write("ca.pem", self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, hosts: tuple[str, ...] = (), password: str = "") -> tuple[Path, Path, Path]:
        """Return files with a certificate for `hosts`, its key (encrypted with `password`), and both together."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = [_alternative_name(host) for host in hosts]
        certificate = self._sign(subject, key.public_key(), names).public_bytes(serialization.Encoding.PEM)
        encryption = (
            serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        )
        secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        return (
            self._write(f"{name}.pem", certificate),
            self._write(f"{name}.key", secret),
            self._write(f"{name}-both.pem", secret + certificate),
        )

    def _sign(
        self, subject: x509.Name, key: Any, names: list[x509.GeneralName], *, authority: bool = False
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def _write(self, name: str, content: bytes) -> Path:
        path = self._directory / name
        path.write_bytes(content)
        path.chmod(0o600)
        return path


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


# --- servers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SecuredServers:
    """The two running servers."""

    certificates: Certificates
    ports: Mapping[str, int]
    """Ports of Kafka's listeners by security protocol, of `BEHIND_PROXY` and its `proxy`, of `zookeeper` and
    `zookeeper-tls`."""
    server_certificate: Path
    """The servers' certificate and key in one file."""

    def kafka(self, protocol: str, **extra: str) -> dict[str, Any]:
        """Return a connection to the listener of a protocol; extras are librdkafka's options, with `_` for `.`."""
        options = {"bootstrap.servers": f"127.0.0.1:{self.ports[protocol]}", "security.protocol": protocol}
        if protocol.endswith("SSL"):
            options["ssl.ca.location"] = str(self.certificates.ca)
        return {"conn_type": "kafka", "extra": options | {key.replace("_", "."): extra[key] for key in extra}}

    def kafka_as(self, user: User, mechanism: str, protocol: str = "SASL_SSL") -> dict[str, Any]:
        """Return a connection of a user to the listener of a protocol."""
        return self.kafka(protocol, sasl_mechanism=mechanism, sasl_username=user.name, sasl_password=user.password)

    def zookeeper(self, user: User | None = None, *, tls: bool = False, **extra: Any) -> dict[str, Any]:
        """Return a connection to ZooKeeper."""
        options = {"use_ssl": True, "ca": str(self.certificates.ca)} if tls else {}
        found: dict[str, Any] = {
            "conn_type": "zookeeper",
            "host": "127.0.0.1",
            "port": self.ports["zookeeper-tls" if tls else "zookeeper"],
            "extra": options | extra,
        }
        return found | ({"login": user.name, "password": user.password} if user else {})

    @cached_property
    def admin(self) -> AdminClient:
        """A client of the listener without security, whose users are administrators."""
        return AdminClient({"bootstrap.servers": f"127.0.0.1:{self.ports['PLAINTEXT']}", "log_level": 0})

    def allow(self, user: User, name: str, operation: AclOperation, kind: KafkaResource = KafkaResource.TOPIC) -> None:
        """Create an ACL that allows a user an operation on a topic, or on a resource of another kind."""
        binding = AclBinding(
            kind,
            name,
            ResourcePatternType.LITERAL,
            f"User:{user.name}",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for future in self.admin.create_acls([binding]).values():
            future.result(timeout=20)

    def revoke_all(self, user: User) -> None:
        """Delete all ACLs of a user, and wait until the broker's authorizer has none of them."""
        of_user = AclBindingFilter(
            KafkaResource.ANY,
            None,
            ResourcePatternType.ANY,
            f"User:{user.name}",
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        for future in self.admin.delete_acls([of_user]).values():
            future.result(timeout=20)
        deadline = time.monotonic() + _READY_SECONDS
        while self.admin.describe_acls(of_user).result(timeout=20):
            assert time.monotonic() < deadline, f"the ACLs of {user.name} are still there"
            time.sleep(0.05)


@contextmanager
def secured_servers(directory: Path) -> Iterator[SecuredServers]:
    """Start both servers, and stop them at the end of the block."""
    certificates = Certificates(directory / "certificates")
    _, _, server = certificates.issue("server", ("127.0.0.1",))
    names = (*_PROTOCOLS, "BEHIND_PROXY", "proxy", "controller", "zookeeper", "zookeeper-tls")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    java = preflight.find_java()
    zookeeper = ZooKeeper(
        java,
        directory / "zookeeper",
        ports["zookeeper"],
        {
            "secureClientPort": ports["zookeeper-tls"],
            "secureClientPortAddress": "127.0.0.1",
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.type": "PEM",
            "ssl.keyStore.location": server,
            "ssl.trustStore.type": "PEM",
            "ssl.trustStore.location": certificates.ca,
            "ssl.clientAuth": "want",
            "authProvider.x509": "org.apache.zookeeper.server.auth.X509AuthenticationProvider",
        },
    )
    logs = directory / "logs"
    logs.mkdir()
    guardian = GuardianHandle.start(directory)
    try:
        for spec in (_kafka(directory / "kafka", logs, ports, certificates.ca, server, java), *zookeeper.specs(logs)):
            guardian.start_server(spec)
        servers = SecuredServers(certificates, ports, server)
        _wait(guardian, "zookeeper", zookeeper.why_not_ready)
        _wait(guardian, "kafka-secured", lambda: _missing_topics(servers))
        yield servers
    finally:
        guardian.shutdown(grace_seconds=0.0)


def _kafka(
    home: Path, logs: Path, ports: Mapping[str, int], ca: Path, server: Path, java: preflight.Java
) -> ServerSpec:
    home.mkdir(parents=True)
    config = home / "server.properties"
    settings = _settings(ports, ca, server) | {"log.dirs": str(home / "data")}
    config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    config.chmod(0o600)
    kafka_jars = jars.resolve(jars.KAFKA, java)
    command = [str(java.binary), f"-Dlog4j2.configurationFile={write_log4j_config(home)}"]
    command += ["-XX:+UseSerialGC", "-Xmx400m", "-cp", f"{kafka_jars}/*"]
    cluster_id = "A" + urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
    # Only this short-lived tool runs without the JVM's second compiler: the broker needs it for fast AES.
    format_log = [
        *command,
        "-XX:TieredStopAtLevel=1",
        "kafka.tools.StorageTool",
        "format",
        "-t",
        cluster_id,
        "-c",
        str(config),
    ]
    for user in (ALICE, BOB):
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            format_log += ["--add-scram", f"{mechanism}=[name={user.name},password={user.password}]"]
    script = f"{shlex.join(format_log)} && exec {shlex.join([*command, 'kafka.Kafka', str(config)])}"
    return ServerSpec("kafka-secured", ("/bin/sh", "-c", script), logs / "kafka.log", home)


def _settings(ports: Mapping[str, int], ca: Path, server: Path) -> dict[str, object]:
    listeners = [f"{protocol}://127.0.0.1:{ports[protocol]}" for protocol in _PROTOCOLS]
    proxied = "BEHIND_PROXY://127.0.0.1"
    plain = " ".join(f'user_{user.name}="{user.password}"' for user in (ALICE, BOB))
    jaas = {}
    for protocol in ("sasl_ssl", "sasl_plaintext"):
        base = f"listener.name.{protocol}"
        jaas[f"{base}.plain.sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {plain};"
        )
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            jaas[f"{base}.{mechanism}.sasl.jaas.config"] = (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            )
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{ports['controller']}",
        "listeners": ",".join(
            [
                *listeners,
                f"{proxied}:{ports['BEHIND_PROXY']}",
                f"CONTROLLER://127.0.0.1:{ports['controller']}",
            ]
        ),
        "advertised.listeners": ",".join([*listeners, f"{proxied}:{ports['proxy']}"]),
        "listener.security.protocol.map": ",".join(
            [
                *(f"{protocol}:{protocol}" for protocol in _PROTOCOLS),
                "BEHIND_PROXY:PLAINTEXT",
                "CONTROLLER:PLAINTEXT",
            ]
        ),
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        **jaas,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": server,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": ca,
        "listener.name.ssl.ssl.client.auth": "required",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{ALICE.name};User:CN=client",
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "num.network.threads": 2,
        "num.io.threads": 2,
        "socket.send.buffer.bytes": 1 << 20,
    }


def _missing_topics(servers: SecuredServers) -> str | None:
    try:
        servers.admin.list_topics(timeout=2)
    except Exception as error:
        return str(error)
    return None


def _wait(guardian: GuardianHandle, name: str, ask: Any) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while (missing := ask()) is not None:
        state = guardian.status().server(name)
        assert state is not None
        if not state.running or time.monotonic() > deadline:
            raise AssertionError(f"{name}: {missing}\n{log_tail(Path(state.log))}")
        time.sleep(0.1)


@contextmanager
def tls_proxy(servers: SecuredServers) -> Iterator[None]:
    """End TLS in front of the listener `BEHIND_PROXY`. The proxy delays the broker's bytes a little and joins them.

    So one TLS record contains the end of one response and whole others, which the broker itself never sends.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(servers.server_certificate)
    started, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hold_back: float) -> None:
        with suppress(OSError):
            while data := await reader.read(_COPY_BYTES):
                await asyncio.sleep(hold_back)
                if hold_back and len(data) < _COPY_BYTES:
                    with suppress(TimeoutError):
                        data += await asyncio.wait_for(reader.read(_COPY_BYTES - len(data)), hold_back)
                writer.write(data)
                await writer.drain()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with ExitStack() as ends:  # `run` may cancel this task while it connects, or while it waits for the pumps
            ends.callback(writer.transport.abort)
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", servers.ports["BEHIND_PROXY"])
            ends.callback(inner_writer.transport.abort)
            pumps = [
                asyncio.create_task(pump(reader, inner_writer, 0.0)),
                asyncio.create_task(pump(inner_reader, writer, _HOLD_BACK_SECONDS)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in pumps:
                    task.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", servers.ports["proxy"], ssl=context)
        started.set()
        async with server:
            await stop.wait()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.sleep(_HOLD_BACK_SECONDS)  # the loop closes the transports

    thread = threading.Thread(target=loop.run_until_complete, args=[run()])
    thread.start()
    try:
        assert started.wait(10)
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


def as_environment(**connections: Mapping[str, Any]) -> dict[str, str]:
    """Return connections by name as Airflow's environment variables."""
    return {f"AIRFLOW_CONN_{name.upper()}": json.dumps(connection) for name, connection in connections.items()}
