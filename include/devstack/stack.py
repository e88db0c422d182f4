"""The local stack as one object: start it, find it, use its endpoints, break it on purpose, stop it."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from devstack import jars, preflight
from devstack.airflow import MIGRATION_SERVER, SCHEDULER, USER, Airflow
from devstack.control import GuardianHandle, GuardianStatus
from devstack.kafka import BROKER_IDS, KafkaCluster, broker_name
from devstack.kinesis import KinesisEmulator, emulator_home
from devstack.s3 import REGION, S3Program, S3Server, choose_server
from devstack.servers import ServerSpec, ServerState, free_ports, log_tail
from devstack.spark import SparkCluster, worker_name
from devstack.state import (
    SPARK_CONF_DIRECTORY,
    Endpoints,
    discard_state_of_lost_objects,
    project_root,
    read_endpoints,
    update_endpoints,
    write_exports,
    write_spark_defaults,
)
from devstack.zookeeper import ZooKeeper
from waybill.base.errors import StackError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

BUCKET = "waybill"
_READY_SECONDS = 180.0
_POLL_SECONDS = 0.1


class Service(Protocol):
    """One or more server processes that become ready together."""

    @property
    def name(self) -> str:
        """The name for progress and error messages."""

    def specs(self, logs: Path) -> tuple[ServerSpec, ...]:
        """Write the configuration, and return the processes to start."""

    def why_not_ready(self) -> str | None:
        """Ask the service. Return None if it is ready, else what is missing."""


class Stack:
    """A running local stack, from `start` or `attach`.

    `start` makes this process the stack's owner: when it ends, for whatever reason, all servers stop
    (`devstack.guardian`). As a context manager the stack stops at the end of the block.
    """

    def __init__(
        self,
        state_dir: Path,
        guardian: GuardianHandle,
        java: preflight.Java,
        kafka_jars: Path,
        endpoints: Endpoints,
        on_progress: Callable[[str], None],
    ) -> None:
        self.state_dir = state_dir
        self.logs = state_dir / "logs"
        self.java = java
        self.endpoints = endpoints
        self._guardian = guardian
        self._on_progress = on_progress
        ports = endpoints.ports
        pairs = tuple(zip(ports[0:6:2], ports[1:6:2], strict=True))
        self.kafka = KafkaCluster(java, kafka_jars, state_dir / "kafka", pairs)
        self.zookeeper = ZooKeeper(java, state_dir / "zookeeper", ports[6])
        self.s3 = S3Server(
            S3Program(endpoints.s3_kind, Path(endpoints.s3_binary)),
            state_dir / "s3",
            ports[7],
            endpoints.s3_access_key,
            endpoints.s3_secret_key,
            BUCKET,
        )
        self.spark: SparkCluster | None = None
        """None before `start_spark`."""
        self.kinesis: KinesisEmulator | None = None
        """None before `start_kinesis`."""
        self.airflow = Airflow(
            state_dir / "airflow",
            project_root(),
            (ports[8], ports[9], ports[10]),
            endpoints.airflow_password,
            self.environment(),
        )

    # --- start and stop -----------------------------------------------------------------------------------------------

    @classmethod
    def start(
        cls,
        state_dir: Path,
        *,
        airflow: bool = False,
        airflow_environment: Mapping[str, str] | None = None,
        on_progress: Callable[[str], None] | None = None,
    ) -> Stack:
        """Start Kafka, ZooKeeper and S3, with `airflow` also Airflow, and return when all of them are ready.

        `state_dir` is created if it does not exist. A stack that was stopped continues with its state, on the same
        ports if they are free. `airflow_environment`: as in `start_airflow`. `on_progress` gets one line of text for
        each step that takes time.

        Raises `StackError` if a requirement is missing, a server does not start, or a stack runs in `state_dir`
        already. Then no process is left.
        """
        report = on_progress or (lambda _: None)
        state_dir = state_dir.absolute()
        java = preflight.check(state_dir)
        state_dir.mkdir(parents=True, exist_ok=True)
        state_dir.chmod(0o700)
        guardian = GuardianHandle.start(state_dir)
        try:
            kafka_jars, iceberg_jars, program = _find_programs(java, report)
            discard_state_of_lost_objects(state_dir, program, report)
            stack = cls(state_dir, guardian, java, kafka_jars, update_endpoints(state_dir, program), report)
            write_spark_defaults(state_dir, iceberg_jars)
            write_exports(state_dir, stack.environment())
            report(f"starting {len(BROKER_IDS)} Kafka brokers, ZooKeeper and S3 ({program.kind})")
            if airflow:  # its database is migrated while the others start
                stack._start_migration()
            stack._start_services([stack.kafka, stack.zookeeper, stack.s3])
            if airflow:
                stack.start_airflow(airflow_environment)
        except BaseException:
            guardian.shutdown(grace_seconds=0.0)
            raise
        return stack

    @classmethod
    def attach(cls, state_dir: Path, *, on_progress: Callable[[str], None] | None = None) -> Stack | None:
        """Return the stack that runs in `state_dir`, or None. It does not make this process the owner."""
        state_dir = state_dir.absolute()
        endpoints = read_endpoints(state_dir)
        if endpoints is None or (guardian := GuardianHandle.find(state_dir)) is None:
            return None
        report = on_progress or (lambda _: None)
        java = preflight.find_java()
        return cls(state_dir, guardian, java, jars.resolve(jars.KAFKA, java, report), endpoints, report)

    def stop(self, *, grace_seconds: float = 5.0) -> None:
        """Stop all servers, and return when no process of the stack is left.

        A server gets SIGTERM, and SIGKILL after `grace_seconds`; with 0 it gets SIGKILL at once.
        """
        self._guardian.shutdown(grace_seconds=grace_seconds)

    def release(self) -> None:
        """Give up ownership: the stack outlives this process, and only `stop` ends it."""
        self._guardian.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def log_excerpt(self, name: str, *, lines: int = 60) -> str:
        """Return the state of a server and the end of its log, that of earlier starts too, for an error message."""
        state = self.status().server(name)
        if state is None:
            return f"{name} was not started"
        return f"{name} {state.how_it_ended()}. {_log_excerpt(replace(state, log_start_bytes=0), lines)}"

    def status(self) -> GuardianStatus:
        """Return the state of each server."""
        return self._guardian.status()

    def start_airflow(self, environment: Mapping[str, str] | None = None) -> None:
        """Start Airflow if it is not running, and return when it is healthy.

        `environment`: more environment variables for its tasks than `environment()`, such as `WAYBILL_CONFIG`.
        """
        if self.airflow_runs():
            return
        self.airflow = replace(self.airflow, connections={**self.environment(), **(environment or {})})
        self._on_progress("starting Airflow: scheduler, DAG processor, API server, triggerer")
        if self.status().server(MIGRATION_SERVER) is None:
            self._start_migration()
        self._wait_for_migration()
        self._start_services([self.airflow])

    def airflow_runs(self) -> bool:
        """Return whether a component of Airflow is running."""
        states = [self.status().server(spec.name) for spec in self.airflow.specs(self.logs)]
        return any(state is not None and state.running for state in states)

    def stop_airflow(self) -> None:
        """Stop Airflow and all its tasks at once, if it is running."""
        if self.airflow_runs():
            for spec in self.airflow.specs(self.logs):
                self._guardian.stop_server(spec.name, grace_seconds=0.0)

    def restart_scheduler(self) -> None:
        """Kill Airflow's scheduler with its tasks, and start it again."""
        self._guardian.stop_server(SCHEDULER, grace_seconds=0.0)
        self._guardian.restart_server(SCHEDULER)

    def start_spark(self) -> SparkCluster:
        """Start a Spark standalone cluster, and return it when the master has registered its workers.

        It stops together with the stack. A stack that was found by `attach` cannot use it.
        """
        if self.spark is None:
            first, *others = free_ports(4)
            self.spark = SparkCluster(self.java, self.state_dir / "spark", (first, others[0], others[1], others[2]))
            self._on_progress("starting a Spark cluster: a master and two workers")
            self._start_services([self.spark])
        return self.spark

    def start_kinesis(self) -> KinesisEmulator:
        """Start the Kinesis emulator, without streams, if it is not running, and return when it answers.

        It stops together with the stack, and its streams are lost. An emulator that another process started on the same
        stack is replaced.
        """
        if self.kinesis is None:
            state = self.status().server(KinesisEmulator.name)
            if state is not None and state.running:
                self._guardian.stop_server(KinesisEmulator.name, grace_seconds=0.0)
            home = emulator_home(self._on_progress)
            port, tls_port = free_ports(2)
            self.kinesis = KinesisEmulator(home, self.state_dir / "kinesis", port, tls_port)
            self._on_progress("starting the Kinesis emulator")
            self._start_services([self.kinesis])
        return self.kinesis

    def stop_spark(self) -> None:
        """Stop the Spark cluster, if there is one, and delete its state."""
        if self.spark is not None:
            for spec in self.spark.specs(self.logs):
                self._guardian.stop_server(spec.name, grace_seconds=0.0)
            shutil.rmtree(self.spark.directory, ignore_errors=True)
            self.spark = None

    def kill_spark_worker(self, number: int) -> None:
        """Send SIGKILL to a worker of the Spark cluster and to its executors."""
        self._guardian.stop_server(worker_name(number), grace_seconds=0.0)

    def _start_migration(self) -> None:
        self._guardian.start_server(self.airflow.migration_spec(self.logs))

    def _wait_for_migration(self) -> None:
        start = time.monotonic()
        while (state := self.status().server(MIGRATION_SERVER)) is not None and state.running:
            self._check_deadline(start, MIGRATION_SERVER, [MIGRATION_SERVER], "the migration is still running")
            time.sleep(_POLL_SECONDS)
        if state is None or state.dead:
            raise StackError(f"`airflow db migrate` failed.\n{_log_excerpt(state) if state else ''}")

    # --- endpoints ----------------------------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of Kafka's brokers, comma-separated."""
        return self.kafka.bootstrap_servers

    @property
    def zookeeper_hosts(self) -> str:
        """`host:port` of ZooKeeper."""
        return self.zookeeper.hosts

    @property
    def s3_endpoint_url(self) -> str:
        """The base URL of the S3 API."""
        return self.s3.endpoint_url

    @property
    def s3_access_key(self) -> str:
        """S3's access key id."""
        return self.endpoints.s3_access_key

    @property
    def s3_secret_key(self) -> str:
        """S3's secret access key."""
        return self.endpoints.s3_secret_key

    @property
    def bucket(self) -> str:
        """The bucket of the archive and the warehouse. It exists."""
        return BUCKET

    @property
    def catalog_uri(self) -> str:
        """The URI of Iceberg's SQL catalog, a SQLite file in the state directory."""
        return f"sqlite:///{self.state_dir / 'catalog.db'}"

    @property
    def warehouse(self) -> str:
        """The location of Iceberg's warehouse."""
        return f"s3://{BUCKET}/warehouse"

    def environment(self) -> dict[str, str]:
        """Return the connections in Airflow's format, which tasks, the CLI and tests read."""
        return _connections(self) | {
            "WAYBILL_BUCKET": BUCKET,
            "PYSPARK_PYTHON": sys.executable,
            "JAVA_HOME": str(self.java.home),
            "SPARK_CONF_DIR": str(self.state_dir / SPARK_CONF_DIRECTORY),
        }

    # --- faults -------------------------------------------------------------------------------------------------------

    def kill_broker(self, node_id: int) -> None:
        """Send SIGKILL to a broker, and return when the process has ended. The cluster notices it within seconds."""
        self._guardian.stop_server(broker_name(node_id), grace_seconds=0.0)

    def stop_broker(self, node_id: int) -> None:
        """Shut a broker down: it first hands its partitions over."""
        self._guardian.stop_server(broker_name(node_id), grace_seconds=20.0)

    def start_broker(self, node_id: int) -> None:
        """Start a broker that was killed or stopped, and return when it has rejoined the cluster."""
        self._guardian.restart_server(broker_name(node_id))
        running = self._running_brokers()
        self._wait_for("kafka", [broker_name(node_id)], lambda: self.kafka.why_brokers_not_ready(running))

    def pause_server(self, name: str) -> None:
        """Send SIGSTOP: the server keeps its connections and answers nothing. `name`: kafka-1, zookeeper, s3."""
        self._guardian.signal_server(name, signal.SIGSTOP)

    def resume_server(self, name: str) -> None:
        """Send SIGCONT, after `pause_server`."""
        self._guardian.signal_server(name, signal.SIGCONT)

    def kill_zookeeper(self) -> None:
        """Send SIGKILL to ZooKeeper. Its data stays."""
        self._guardian.stop_server(self.zookeeper.name, grace_seconds=0.0)

    def stop_zookeeper(self) -> None:
        """Shut ZooKeeper down. Its data stays."""
        self._guardian.stop_server(self.zookeeper.name)

    def wipe_zookeeper(self) -> None:
        """Delete ZooKeeper's data. Raises `StackError` if it is running."""
        state = self.status().server(self.zookeeper.name)
        if state is not None and state.running:
            raise StackError("zookeeper is running: stop it before deleting its data")
        shutil.rmtree(self.zookeeper.directory / "data")
        self.zookeeper.specs(self.logs)

    def start_zookeeper(self) -> None:
        """Start ZooKeeper again, and return when it is ready."""
        self._restart(self.zookeeper)

    def kill_s3(self) -> None:
        """Send SIGKILL to the S3 server. Versitygw keeps its objects; moto loses them."""
        self._guardian.stop_server(self.s3.name, grace_seconds=0.0)

    def start_s3(self) -> None:
        """Start the S3 server again, and return when it is ready and the bucket exists."""
        self._restart(self.s3)

    def restart_ended(self) -> list[str]:
        """Start every server that has ended by itself, and return their names when they are ready."""
        ended = [server.name for server in self.status().servers if server.dead]
        for name in ended:
            self._guardian.restart_server(name)
        services: tuple[Service, ...] = (self.kafka, self.zookeeper, self.s3, self.airflow)
        for service in services:
            names = [spec.name for spec in service.specs(self.logs)]
            if set(names) & set(ended):
                self._wait_for(service.name, names, service.why_not_ready)
        return ended

    # --- starting and waiting -----------------------------------------------------------------------------------------

    def _start_services(self, services: Iterable[Service]) -> None:
        """Start all services at the same time, and return when each of them is ready."""
        waiting = []
        for service in services:
            specs = service.specs(self.logs)
            for spec in specs:
                self._guardian.start_server(spec)
            waiting.append((service, [spec.name for spec in specs]))
        start = time.monotonic()
        while waiting:
            for entry in list(waiting):
                service, names = entry
                if (reason := self._ask(service.why_not_ready, names)) is None:
                    self._on_progress(f"{service.name} is ready after {time.monotonic() - start:.1f} s")
                    waiting.remove(entry)
                else:
                    self._check_deadline(start, service.name, names, reason)
            time.sleep(_POLL_SECONDS if waiting else 0.0)

    def _restart(self, service: Service) -> None:
        self._guardian.restart_server(service.name)
        self._wait_for(service.name, [service.name], service.why_not_ready)

    def _wait_for(self, name: str, servers: list[str], why_not_ready: Callable[[], str | None]) -> None:
        start = time.monotonic()
        while (reason := self._ask(why_not_ready, servers)) is not None:
            self._check_deadline(start, name, servers, reason)
            time.sleep(_POLL_SECONDS)

    def _ask(self, why_not_ready: Callable[[], str | None], servers: list[str]) -> str | None:
        """Return why a service is not ready. Raises `StackError` if a process has ended, so that it never will be."""
        status = self.status()
        for name in servers:
            if (state := status.server(name)) is not None and not state.running:
                raise StackError(f"{name} {state.how_it_ended()} before it was ready.\n{_log_excerpt(state)}")
        return why_not_ready()

    def _check_deadline(self, start: float, name: str, servers: list[str], reason: str) -> None:
        if time.monotonic() - start < _READY_SECONDS:
            return
        status = self.status()
        logs = [_log_excerpt(state) for server in servers if (state := status.server(server)) is not None]
        raise StackError(f"{name} is not ready after {_READY_SECONDS:.0f} s: {reason}\n" + "\n".join(logs))

    def _running_brokers(self) -> tuple[int, ...]:
        status = self.status()
        states = ((node_id, status.server(broker_name(node_id))) for node_id in BROKER_IDS)
        return tuple(node_id for node_id, state in states if state is not None and state.running)


def _find_programs(java: preflight.Java, report: Callable[[str], None]) -> tuple[Path, Path, S3Program]:
    """Return Kafka's jars, Iceberg's jars and the S3 program; those that are not in the cache are made in parallel."""
    with ThreadPoolExecutor(max_workers=3) as pool:
        iceberg_jars = pool.submit(jars.resolve, jars.ICEBERG, java, report)
        kafka_jars = pool.submit(jars.resolve, jars.KAFKA, java, report)
        program = pool.submit(choose_server, report)
        return kafka_jars.result(), iceberg_jars.result(), program.result()


def _connections(stack: Stack) -> dict[str, str]:
    connections = {
        "KAFKA": {"conn_type": "kafka", "extra": {"bootstrap.servers": stack.bootstrap_servers}},
        "ZOOKEEPER": {
            "conn_type": "zookeeper",
            "host": "127.0.0.1",
            "port": stack.zookeeper.port,
            "schema": "waybill",
        },
        "AWS": {
            "conn_type": "aws",
            "login": stack.s3_access_key,
            "password": stack.s3_secret_key,
            "extra": {"endpoint_url": stack.s3_endpoint_url, "region_name": REGION, **stack.s3.connection_options},
        },
        "ICEBERG": {
            "conn_type": "iceberg",
            "host": stack.catalog_uri,
            "extra": {"type": "sql", "warehouse": stack.warehouse},
        },
        "SPARK": {"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}},
    }
    variables = {f"AIRFLOW_CONN_{name}_DEFAULT": json.dumps(connection) for name, connection in connections.items()}
    # For the watch, if the config names it (`airflow.connection`).
    api = {
        "conn_type": "http",
        "host": "127.0.0.1",
        "port": stack.endpoints.ports[8],
        "login": USER,
        "password": stack.endpoints.airflow_password,
    }
    return {**variables, "AIRFLOW_CONN_WAYBILL_AIRFLOW": json.dumps(api)}


def _log_excerpt(state: ServerState, lines: int = 20) -> str:
    return f"The end of {state.log}:\n{log_tail(Path(state.log), start_bytes=state.log_start_bytes, lines=lines)}"
