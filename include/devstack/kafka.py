"""Three Kafka brokers in KRaft mode; each of them is a controller, too."""

from __future__ import annotations

import itertools
import shlex
import socket
import uuid
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING

from devstack.jars import write_log4j_config
from devstack.servers import ServerSpec

if TYPE_CHECKING:
    from pathlib import Path

    from devstack.preflight import Java

BROKER_IDS = (1, 2, 3)
_HEAP_MB = 600

# For every broker. Replication as in production; timeouts and rebalances short enough for a demo and tests.
_SETTINGS: dict[str, str | int] = {
    "process.roles": "broker,controller",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "num.partitions": 1,
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.state.log.num.partitions": 3,
    "share.coordinator.state.topic.replication.factor": 3,
    "share.coordinator.state.topic.min.isr": 2,
    "share.coordinator.state.topic.num.partitions": 3,
    "group.initial.rebalance.delay.ms": 0,
    # With retention, messages with old timestamps (the demo's flights of 2013) would be deleted within minutes.
    "log.retention.ms": -1,
    # If a topic sets retention or compaction, it takes effect within seconds.
    "log.retention.check.interval.ms": 2000,
    "log.cleaner.backoff.ms": 1000,
    "log.cleaner.dedupe.buffer.size": 16 * 2**20,
    # After this time a killed broker is fenced, and its partitions get new leaders.
    "broker.session.timeout.ms": 6000,
    "broker.heartbeat.interval.ms": 1000,
    "num.network.threads": 2,
    "num.io.threads": 4,
}


def broker_name(node_id: int) -> str:
    """Return the server's name: `kafka-1`."""
    return f"kafka-{node_id}"


@dataclass(frozen=True)
class KafkaCluster:
    """The brokers, with their state in `directory`. `ports`: for each broker its client port and controller port."""

    java: Java
    jars: Path
    directory: Path
    ports: tuple[tuple[int, int], ...]

    name = "kafka"

    @property
    def bootstrap_servers(self) -> str:
        """The brokers' addresses, such as `127.0.0.1:1,127.0.0.1:2,127.0.0.1:3`."""
        return ",".join(f"127.0.0.1:{client}" for client, _ in self.ports)

    def specs(self, logs: Path) -> tuple[ServerSpec, ...]:
        """Write the configuration, and return the three processes."""
        self.directory.mkdir(parents=True, exist_ok=True)
        return tuple(self._spec(node_id, logs) for node_id in BROKER_IDS)

    def _spec(self, node_id: int, logs: Path) -> ServerSpec:
        home = self.directory / str(node_id)
        data = home / "data"
        home.mkdir(exist_ok=True)
        config = home / "server.properties"
        settings = _SETTINGS | self._addresses(node_id) | {"log.dirs": str(data)}
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        java = [str(self.java.binary), f"-Dlog4j2.configurationFile={write_log4j_config(home)}"]
        java += ["-cp", f"{self.jars}/*"]
        format_log = [*java, "-XX:TieredStopAtLevel=1", "kafka.tools.StorageTool", "format"]
        format_log += ["-t", self._cluster_id(), "-c", str(config)]
        serve = [*java, f"-Xmx{_HEAP_MB}m", "-Xms256m", "-XX:+UseSerialGC", "kafka.Kafka", str(config)]
        script = (
            f"test -f {shlex.quote(str(data / 'meta.properties'))} || {shlex.join(format_log)} || exit 1; "
            f"exec {shlex.join(serve)}"
        )
        return ServerSpec(broker_name(node_id), ("/bin/sh", "-c", script), logs / f"{broker_name(node_id)}.log", home)

    def _addresses(self, node_id: int) -> dict[str, str | int]:
        client, controller = self.ports[BROKER_IDS.index(node_id)]
        voters = (f"{voter}@127.0.0.1:{self.ports[index][1]}" for index, voter in enumerate(BROKER_IDS))
        return {
            "node.id": node_id,
            "broker.rack": f"rack-{node_id}",
            "listeners": f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{client}",
            "controller.quorum.voters": ",".join(voters),
        }

    def _cluster_id(self) -> str:
        """Return the cluster's id. It is stored, since the brokers refuse data of another cluster."""
        file = self.directory / "cluster.id"
        if not file.exists():
            # Not with a dash at the start: Kafka's tool would read it as an option.
            candidates = (urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=") for _ in itertools.count())
            file.write_text(next(candidate for candidate in candidates if not candidate.startswith("-")))
        return file.read_text()

    def why_not_ready(self) -> str | None:
        """Return None if all brokers serve and have a controller, else what is missing."""
        return self.why_brokers_not_ready(BROKER_IDS)

    def why_brokers_not_ready(self, expected: tuple[int, ...]) -> str | None:
        """Return None if exactly the brokers `expected` serve, by the answer of each of them, else what is missing.

        The answer of one broker is not enough: for some seconds the others still list a killed broker.
        """
        for node_id in expected:
            address = f"127.0.0.1:{self.ports[BROKER_IDS.index(node_id)][0]}"
            if (reason := _why_not_ready_at(address, sorted(expected))) is not None:
                return f"{broker_name(node_id)} at {address}: {reason}"
        return None


def _why_not_ready_at(address: str, expected: list[int]) -> str | None:
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    host, port = address.split(":")
    try:
        # A refused connection is an error at once, while the client would try again for seconds.
        socket.create_connection((host, int(port)), timeout=1.0).close()
        admin = KafkaAdminClient(bootstrap_servers=[address], request_timeout_ms=3000, bootstrap_timeout_ms=2000)
    except (KafkaError, OSError, ValueError) as error:
        return f"it does not answer ({error})"
    try:
        cluster = admin.describe_cluster()
    except (KafkaError, OSError) as error:
        return f"it does not describe the cluster ({error})"
    finally:
        admin.close()
    serving = sorted(broker["broker_id"] for broker in cluster["brokers"] if not broker.get("is_fenced"))
    if serving != expected:
        return f"it lists the brokers {serving} of {expected}"
    return None if cluster["controller_id"] in serving else "it has no controller"
