"""The stack as one object: started, asked, hurt on purpose, and stopped."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from devstack import jars, preflight
from devstack.airflow import Airflow
from devstack.control import GuardianHandle, GuardianStatus
from devstack.kafka import BROKER_IDS, KafkaCluster, broker_name
from devstack.ports import free_ports
from devstack.private import write_private
from devstack.s3 import REGION, S3Kind, S3Program, S3Server, choose_server
from devstack.servers import ServerSpec, ServerState, log_tail
from devstack.spark import SparkCluster, worker_name
from devstack.zookeeper import ZooKeeper
from waybill.errors import StackError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

__all__ = ["Endpoints", "Stack", "project_root", "state_dir"]

BUCKET = "waybill"
_READY_SECONDS = 180.0
_POLL_SECONDS = 0.1
_PORT_COUNT = 2 * len(BROKER_IDS) + 2 + 3


def project_root() -> Path:
    """The checkout: where dags/, plugins/ and spark_jobs/ are."""
    return Path(__file__).resolve().parents[2]


def state_dir() -> Path:
    """Where `make up` and the demo keep the stack's state: `WAYBILL_STATE_DIR`, or `.waybill` in the checkout."""
    return Path(os.environ.get("WAYBILL_STATE_DIR") or project_root() / ".waybill").expanduser().absolute()


class Service(Protocol):
    """One or more server processes that answer together."""

    @property
    def name(self) -> str:
        """For progress and messages."""

    def specs(self, logs: Path) -> tuple[ServerSpec, ...]:
        """The processes to start; writes their configuration."""

    def missing(self) -> str | None:
        """Ask the service. None: it is ready; else what is still missing."""


@dataclass(frozen=True)
class Endpoints:
    """Where everything is, and the secrets to get in. Kept in the state directory, readable by its owner only."""

    ports: tuple[int, ...]
    s3_kind: S3Kind
    s3_binary: str
    s3_access_key: str
    s3_secret_key: str
    airflow_password: str


class Stack:
    """A running local stack. Make one with `start`, find one with `attach`.

    `start` makes this process its owner: when this process ends in any way, everything stops (devstack.guardian). As a
    context manager it stops everything at the end of the block.
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
        """Once `start_spark` was called."""
        self.airflow = Airflow(
            state_dir / "airflow",
            project_root(),
            (ports[8], ports[9], ports[10]),
            endpoints.airflow_password,
            self.environment(),
        )

    # --- life ---------------------------------------------------------------------------------------------------------

    @classmethod
    def start(
        cls, state_dir: Path, *, airflow: bool = False, on_progress: Callable[[str], None] | None = None
    ) -> Stack:
        """Start Kafka, ZooKeeper and S3 (and Airflow), and return once each of them answers.

        `state_dir` is created when absent; a stack that was stopped continues where it was, on the same ports if they
        are free. `on_progress` gets one line of text for each thing that takes time.

        Raises `StackError`, with nothing left running, when something is missing, does not start, or a stack runs in
        `state_dir` already.
        """
        report = on_progress or (lambda _: None)
        state_dir = state_dir.absolute()
        java = preflight.check(state_dir)
        state_dir.mkdir(parents=True, exist_ok=True)
        state_dir.chmod(0o700)
        guardian = GuardianHandle.start(state_dir)
        try:
            kafka_jars, program = _programs(java, report)
            _drop_what_lost_its_objects(state_dir, program, report)
            stack = cls(state_dir, guardian, java, kafka_jars, _endpoints(state_dir, program), report)
            _write_spark_defaults(state_dir / _SPARK_CONF, jars.resolve(jars.ICEBERG, java, report))
            write_private(state_dir / ENVIRONMENT_FILE, _exports(stack.environment()))
            report(f"starting {len(BROKER_IDS)} Kafka brokers, ZooKeeper and S3 ({program.kind})")
            if airflow:  # its database is made while the others start
                stack._start_migration()
            stack._start_services([stack.kafka, stack.zookeeper, stack.s3])
            if airflow:
                stack.start_airflow()
        except BaseException:
            guardian.shutdown(grace_seconds=0.0)
            raise
        return stack

    @classmethod
    def attach(cls, state_dir: Path, *, on_progress: Callable[[str], None] | None = None) -> Stack | None:
        """The stack that runs in `state_dir`, or None. Attaching does not make this process its owner."""
        state_dir = state_dir.absolute()
        if not (state_dir / _ENDPOINTS_FILE).exists() or (guardian := GuardianHandle.find(state_dir)) is None:
            return None
        report = on_progress or (lambda _: None)
        java = preflight.find_java()
        endpoints = _read_endpoints(state_dir)
        assert endpoints is not None
        return cls(state_dir, guardian, java, jars.resolve(jars.KAFKA, java, report), endpoints, report)

    def stop(self, *, grace_seconds: float = 5.0) -> None:
        """Stop everything; returns when no process of the stack is left. 0 seconds of grace: SIGKILL at once."""
        self._guardian.shutdown(grace_seconds=grace_seconds)

    def release(self) -> None:
        """Let the stack outlive this process; from now on only `stop` ends it."""
        self._guardian.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def status(self) -> GuardianStatus:
        """How each server fares."""
        return self._guardian.status()

    def start_airflow(self, environment: Mapping[str, str] | None = None) -> None:
        """Start Airflow on a running stack; nothing happens when it runs already. Returns when it is healthy.

        `environment`: for its tasks, on top of `environment()`; e.g. `WAYBILL_CONFIG`.
        """
        if self.airflow_runs():
            return
        self.airflow = replace(self.airflow, connections={**self.environment(), **(environment or {})})
        self._on_progress("starting Airflow: scheduler, DAG processor, API server, triggerer")
        if self.status().server(_MIGRATION) is None:
            self._start_migration()
        self._wait_for_migration()
        self._start_services([self.airflow])

    def airflow_runs(self) -> bool:
        """Whether Airflow was started on this stack, and not stopped since."""
        states = [self.status().server(spec.name) for spec in self.airflow.specs(self.logs)]
        return any(state is not None and state.running for state in states)

    def stop_airflow(self) -> None:
        """Stop what `start_airflow` started, and every task; nothing happens when it does not run."""
        if self.airflow_runs():
            for spec in self.airflow.specs(self.logs):
                self._guardian.stop_server(spec.name, grace_seconds=0.0)

    def start_spark(self) -> SparkCluster:
        """Start a Spark standalone cluster on a running stack. Returns once the master counts its workers.

        It stops with the stack. A stack found by `attach` does not know of it.
        """
        if self.spark is None:
            first, *others = free_ports(4)
            self.spark = SparkCluster(self.java, self.state_dir / "spark", (first, others[0], others[1], others[2]))
            self._on_progress("starting a Spark cluster: a master and two workers")
            self._start_services([self.spark])
        return self.spark

    def stop_spark(self) -> None:
        """Stop what `start_spark` started, and forget its state."""
        if self.spark is not None:
            for spec in self.spark.specs(self.logs):
                self._guardian.stop_server(spec.name, grace_seconds=0.0)
            shutil.rmtree(self.spark.directory, ignore_errors=True)
            self.spark = None

    def kill_spark_worker(self, number: int) -> None:
        """SIGKILL a worker of the Spark cluster and its executors."""
        self._guardian.stop_server(worker_name(number), grace_seconds=0.0)

    def _start_migration(self) -> None:
        self._guardian.start_server(self.airflow.migration_spec(self.logs))

    def _wait_for_migration(self) -> None:
        start = time.monotonic()
        while (state := self.status().server(_MIGRATION)) is not None and state.running:
            self._check_deadline(start, _MIGRATION, [_MIGRATION], "it still migrates")
            time.sleep(_POLL_SECONDS)
        if state is None or state.dead:
            raise StackError(f"Airflow's database could not be made.\n{_log_excerpt(state) if state else ''}")

    # --- endpoints ----------------------------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """Kafka's brokers, comma-separated."""
        return self.kafka.bootstrap_servers

    @property
    def zookeeper_hosts(self) -> str:
        """`host:port` of ZooKeeper."""
        return self.zookeeper.hosts

    @property
    def s3_endpoint_url(self) -> str:
        """Base URL of the S3 API."""
        return self.s3.endpoint_url

    @property
    def s3_access_key(self) -> str:
        """Access key id."""
        return self.endpoints.s3_access_key

    @property
    def s3_secret_key(self) -> str:
        """Secret access key."""
        return self.endpoints.s3_secret_key

    @property
    def bucket(self) -> str:
        """The bucket; it exists."""
        return BUCKET

    @property
    def catalog_uri(self) -> str:
        """Of Iceberg's SQL catalog, a SQLite file in the state directory."""
        return f"sqlite:///{self.state_dir / 'catalog.db'}"

    @property
    def warehouse(self) -> str:
        """Where tables go."""
        return f"s3://{BUCKET}/warehouse"

    def environment(self) -> dict[str, str]:
        """The connections in Airflow's own format, which tasks, the CLI and tests all read."""
        return _connections(self) | {
            "WAYBILL_BUCKET": BUCKET,
            "PYSPARK_PYTHON": sys.executable,
            "JAVA_HOME": str(self.java.home),
            "SPARK_CONF_DIR": str(self.state_dir / _SPARK_CONF),
        }

    # --- faults -------------------------------------------------------------------------------------------------------

    def kill_broker(self, node_id: int) -> None:
        """SIGKILL a broker. Returns when the process is gone; the cluster notices within seconds."""
        self._guardian.stop_server(broker_name(node_id), grace_seconds=0.0)

    def stop_broker(self, node_id: int) -> None:
        """Stop a broker in order: it hands its partitions over first."""
        self._guardian.stop_server(broker_name(node_id), grace_seconds=20.0)

    def start_broker(self, node_id: int) -> None:
        """Start a broker that was killed or stopped. Returns when the cluster counts it in again."""
        self._guardian.restart_server(broker_name(node_id))
        running = self._running_brokers()
        self._wait_for("kafka", [broker_name(node_id)], lambda: self.kafka.missing_brokers(running))

    def pause_server(self, name: str) -> None:
        """SIGSTOP: the server holds its connections and answers nothing. `name`: kafka-1, zookeeper, s3."""
        self._guardian.signal_server(name, signal.SIGSTOP)

    def resume_server(self, name: str) -> None:
        """SIGCONT after `pause_server`."""
        self._guardian.signal_server(name, signal.SIGCONT)

    def kill_zookeeper(self) -> None:
        """SIGKILL ZooKeeper; its data stays."""
        self._guardian.stop_server(self.zookeeper.name, grace_seconds=0.0)

    def stop_zookeeper(self) -> None:
        """Stop ZooKeeper in order; its data stays."""
        self._guardian.stop_server(self.zookeeper.name)

    def wipe_zookeeper(self) -> None:
        """Delete ZooKeeper's data; it must not run."""
        state = self.status().server(self.zookeeper.name)
        if state is not None and state.running:
            raise StackError("zookeeper runs: stop it before its data is wiped")
        shutil.rmtree(self.zookeeper.directory / "data")
        self.zookeeper.specs(self.logs)

    def start_zookeeper(self) -> None:
        """Start ZooKeeper again. Returns when it answers."""
        self._restart(self.zookeeper)

    def kill_s3(self) -> None:
        """SIGKILL the S3 server. Versitygw keeps its objects, moto's are lost."""
        self._guardian.stop_server(self.s3.name, grace_seconds=0.0)

    def start_s3(self) -> None:
        """Start the S3 server again. Returns when it answers and the bucket is there."""
        self._restart(self.s3)

    def restart_ended(self) -> list[str]:
        """Start every server that has ended by itself. Returns their names, once they answer."""
        ended = [server.name for server in self.status().servers if server.dead]
        for name in ended:
            self._guardian.restart_server(name)
        services: tuple[Service, ...] = (self.kafka, self.zookeeper, self.s3, self.airflow)
        for service in services:
            names = [spec.name for spec in service.specs(self.logs)]
            if set(names) & set(ended):
                self._wait_for(service.name, names, service.missing)
        return ended

    # --- starting and waiting -----------------------------------------------------------------------------------------

    def _start_services(self, services: Iterable[Service]) -> None:
        """Start all at once, then wait for each: the slow ones start while the quick ones are asked."""
        waiting = []
        for service in services:
            specs = service.specs(self.logs)
            for spec in specs:
                self._guardian.start_server(spec)
            waiting.append((service, [spec.name for spec in specs]))
        start = time.monotonic()
        while waiting:
            for entry in list(waiting):
                if (missing := self._missing(entry[0].missing, entry[1])) is None:
                    self._on_progress(f"{entry[0].name} answers after {time.monotonic() - start:.1f} s")
                    waiting.remove(entry)
                else:
                    self._check_deadline(start, entry[0].name, entry[1], missing)
            time.sleep(_POLL_SECONDS if waiting else 0.0)

    def _restart(self, service: Service) -> None:
        self._guardian.restart_server(service.name)
        self._wait_for(service.name, [service.name], service.missing)

    def _wait_for(self, name: str, servers: list[str], ask: Callable[[], str | None]) -> None:
        start = time.monotonic()
        while (missing := self._missing(ask, servers)) is not None:
            self._check_deadline(start, name, servers, missing)
            time.sleep(_POLL_SECONDS)

    def _missing(self, ask: Callable[[], str | None], servers: list[str]) -> str | None:
        """Ask, and look whether the processes live: one that has ended will never answer."""
        status = self.status()
        for name in servers:
            if (state := status.server(name)) is not None and not state.running:
                raise StackError(f"{name} {state.how_it_ended()} before it answered.\n{_log_excerpt(state)}")
        return ask()

    def _check_deadline(self, start: float, name: str, servers: list[str], missing: str) -> None:
        if time.monotonic() - start < _READY_SECONDS:
            return
        status = self.status()
        logs = [_log_excerpt(state) for server in servers if (state := status.server(server)) is not None]
        raise StackError(f"{name} is not ready after {_READY_SECONDS:.0f} s: {missing}\n" + "\n".join(logs))

    def _running_brokers(self) -> tuple[int, ...]:
        status = self.status()
        states = ((node_id, status.server(broker_name(node_id))) for node_id in BROKER_IDS)
        return tuple(node_id for node_id, state in states if state is not None and state.running)


# --- what is kept -----------------------------------------------------------------------------------------------------

ENVIRONMENT_FILE = "env"
_SPARK_CONF = "spark-conf"
_ENDPOINTS_FILE = "stack.json"
_MIGRATION = "airflow-db"
_VERSION = 1


def _programs(java: preflight.Java, report: Callable[[str], None]) -> tuple[Path, S3Program]:
    """Kafka's jars and the S3 program; made at the same time as Spark's jars when they are not there yet."""
    with ThreadPoolExecutor(max_workers=3) as pool:
        iceberg_jars = pool.submit(jars.resolve, jars.ICEBERG, java, report)
        kafka_jars = pool.submit(jars.resolve, jars.KAFKA, java, report)
        program = pool.submit(choose_server, report)
        iceberg_jars.result()
        return kafka_jars.result(), program.result()


def _write_spark_defaults(directory: Path, iceberg_jars: Path) -> None:
    """Spark's defaults of the stack: Iceberg's jars on the class path, as they lie in the cache."""
    # Not by spark.jars, which would have each job copy them.
    directory.mkdir(parents=True, exist_ok=True)
    lines = (f"spark.{process}.extraClassPath {iceberg_jars}/*\n" for process in ("driver", "executor"))
    (directory / "spark-defaults.conf").write_text("".join(lines))


def _drop_what_lost_its_objects(state_dir: Path, program: S3Program, report: Callable[[str], None]) -> None:
    """Moto's objects end with its process: topics, committed offsets and tables that speak of them go as well."""
    known = _read_endpoints(state_dir)
    if known is None:
        return
    if known.s3_kind is not program.kind:
        raise StackError(
            f"the objects in {state_dir} are those of {known.s3_kind}, and the S3 server is now {program.kind}: "
            f"set WAYBILL_S3_SERVER={known.s3_kind}, or begin anew with: python -m devstack down --wipe"
        )
    if program.kind is S3Kind.MOTO:
        report("moto keeps objects in memory: those of the last time are gone, and so topics and tables begin anew")
        for directory in ("kafka", "zookeeper"):
            shutil.rmtree(state_dir / directory, ignore_errors=True)
        (state_dir / "catalog.db").unlink(missing_ok=True)


def _endpoints(state_dir: Path, program: S3Program) -> Endpoints:
    """What the state directory says, brought up to date: ports that were taken meanwhile are replaced."""
    known = _read_endpoints(state_dir)
    endpoints = Endpoints(
        ports=tuple(free_ports(_PORT_COUNT, prefer=known.ports if known else ())),
        s3_kind=program.kind,
        s3_binary=str(program.binary),
        s3_access_key=known.s3_access_key if known else "waybill",
        s3_secret_key=known.s3_secret_key if known else secrets.token_hex(16),
        airflow_password=known.airflow_password if known else secrets.token_urlsafe(9),
    )
    write_private(state_dir / _ENDPOINTS_FILE, json.dumps({"v": _VERSION} | asdict(endpoints), indent=2))
    return endpoints


def _read_endpoints(state_dir: Path) -> Endpoints | None:
    path = state_dir / _ENDPOINTS_FILE
    try:
        document = json.loads(path.read_text())
        if document.pop("v") != _VERSION:
            raise ValueError("it is of another version of the stack")
        return Endpoints(**document | {"ports": tuple(document["ports"]), "s3_kind": S3Kind(document["s3_kind"])})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise StackError(f"{path} cannot be used: {error}. Remove {state_dir} and start again.") from error


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
            "extra": {"endpoint_url": stack.s3_endpoint_url, "region_name": REGION},
        },
        "ICEBERG": {
            "conn_type": "iceberg",
            "host": stack.catalog_uri,
            "extra": {"type": "sql", "warehouse": stack.warehouse},
        },
        "SPARK": {"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}},
    }
    return {f"AIRFLOW_CONN_{name}_DEFAULT": json.dumps(connection) for name, connection in connections.items()}


def _exports(environment: dict[str, str]) -> str:
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in environment.items()]
    lines.append(f'export PATH={shlex.quote(str(Path(sys.prefix) / "bin"))}:"$PATH"\n')
    return "# source this file, and `waybill` works on the local stack\n" + "".join(lines)


def _log_excerpt(state: ServerState) -> str:
    return f"The end of {state.log}:\n{log_tail(Path(state.log), start_bytes=state.log_start_bytes)}"
