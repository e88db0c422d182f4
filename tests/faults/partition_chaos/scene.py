"""Play a scenario: waves of messages that are archived without faults and partitioned with them, then the checks."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from chaos.checker import Fault
from chaos.lanes import Job, Launch
from chaos.s3_proxy import S3Proxy
from chaos.world import World
from confluent_kafka import Producer
from pyiceberg.io.pyarrow import parquet_file_to_data_file

from partition_chaos.checker import JUNK, Checked, check, open_tables
from partition_chaos.scenario import Act, Kind, Meanwhile, Scenario, Wave

PRELOAD = ("waybill.tables.partition.partition_run", "waybill.records.batches.decode", "waybill.parsers")
"""Modules of the driver that its fork server imports in advance."""

STREAM = "chaos"
_DAY_MS = 86_400_000
_TIMEOUT_SECONDS = 150.0
"""Longest run time of a process on a busy machine."""
_LOCK_SECONDS = 2
_MAX_FINAL_RUNS = 30
_RETRIABLE = {"StoreUnavailable", "CatalogUnavailable", "CommitConflict"}


@dataclass
class PartitionSceneResult:
    """The events of a scenario, and the results of its checks. Without faults, the protocol is correct."""

    seed: int
    seconds: float = 0.0
    happened: Counter[str] = field(default_factory=Counter)
    """Faults that were injected and took effect."""
    drawn: Counter[Kind] = field(default_factory=Counter)
    """Number of acts, by kind."""
    took_effect: Counter[Kind] = field(default_factory=Counter)
    """Number of acts that took effect, by kind."""
    errors: Counter[str] = field(default_factory=Counter)
    """Errors of drivers, by class name."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Outcomes of the drivers that ended without an error."""
    checked: Checked = field(default_factory=Checked)
    orphans: int = 0
    """Data files that no snapshot references, which maintenance removes."""
    faults: list[Fault] = field(default_factory=list)


class PartitionScene:
    """One scenario on the world's stack, with its own topic, archive and catalog."""

    def __init__(self, world: World, scenario: Scenario) -> None:
        self.scenario = scenario
        self.topic = f"partition-{world.run}-{scenario.seed}"
        self.result = PartitionSceneResult(scenario.seed)
        self.directory = world.directory / self.topic
        self._world = world
        self._rng = random.Random(scenario.seed)
        self._written = 0
        self._table = f"chaos.t{world.run}_{scenario.seed}"

    def run(self) -> PartitionSceneResult:
        """Play the scenario and check the tables. An error of the harness itself counts as a fault."""
        began = time.monotonic()
        try:
            self._open()
            try:
                for wave in self.scenario.waves:
                    self._play(wave)
                self._run_to_the_end()
                self._check()
            finally:
                self._s3.close()
                self._world.delete_topic(self.topic)
        except Exception:
            self._fault("harness", traceback.format_exc())
        self.result.seconds = time.monotonic() - began
        return self.result

    def _open(self) -> None:
        self.directory.mkdir(parents=True)
        self._world.create_topic(self.topic, self.scenario.partitions)
        self._s3 = S3Proxy(self._world.proxies, self._world.stack.s3_endpoint_url, self._world.credentials)
        (self.directory / "streams.yaml").write_text(json.dumps(self._config()))

    # --- messages, and the archive ---

    def _play(self, wave: Wave) -> None:
        self._produce(wave.messages)
        self._archive()
        for act in wave.acts:
            self._act(act)
        if wave.clean_run:
            self._finish(self._drive())

    def _produce(self, messages: int) -> None:
        producer = Producer(
            {"bootstrap.servers": self._world.stack.bootstrap_servers, "linger.ms": 5, "batch.size": 4096}
        )
        for _ in range(messages):
            number, self._written = self._written, self._written + 1
            value = JUNK + b" %d" % number
            if self._rng.random() >= self.scenario.junk_share:
                text = self._rng.randbytes(self.scenario.value_bytes // 2).hex()
                at = int(time.time() * 1000) - self._rng.randrange(5 * _DAY_MS)
                value = json.dumps({"id": str(number), "at": at, "text": text}).encode()
            producer.produce(self.topic, value, b"%d" % number, number % self.scenario.partitions)
        left = producer.flush(_TIMEOUT_SECONDS)
        assert left == 0, f"Kafka did not take {left} messages"

    def _archive(self) -> None:
        while True:
            plan = self._launch("plan", hurt=False)
            assert plan.wait(_TIMEOUT_SECONDS), f"planning lanes hangs: {plan.log}"
            lanes = (plan.answer() or {})["lanes"]
            if not lanes:
                return
            jobs = [self._launch("lane", hurt=False, lane=lane) for lane in lanes]
            for job in jobs:
                assert job.wait(_TIMEOUT_SECONDS), f"a lane hangs: {job.log}"

    # --- faults ---

    def _act(self, act: Act) -> None:
        before = self.result.happened.total()
        _ACTS[act.kind](self, act)
        self.result.drawn[act.kind] += 1
        self.result.took_effect[act.kind] += self.result.happened.total() > before

    def _calls(self, act: Act) -> None:
        self._s3.hurt(*act.calls)
        self._finish(self._drive())
        self._s3.heal()
        self.result.happened.update(self._s3.injected)
        self._s3.injected.clear()

    def _kill(self, act: Act) -> None:
        driver = self._drive(f"{act.failpoint}=kill@{act.nth}")
        if self._ended(driver) and driver.was_killed:
            self.result.happened[str(act)] += 1
        else:
            self._reports_of(driver)

    def _rivals(self, act: Act) -> None:
        drivers = [self._drive(delay) for delay in act.rival_delays]
        for driver in drivers:
            self._finish(driver)
        self.result.happened[str(act)] += 1

    def _freeze(self, act: Act) -> None:
        assert act.meanwhile is not None
        driver = self._drive(f"{act.failpoint}=stop@{act.nth}")
        if not self._ended(driver, or_stopped=True):
            return
        if driver.exit_code is not None:  # no input, or no rows for the quarantine
            self._reports_of(driver)
            return
        self.result.happened[str(act)] += 1
        undo = _MEANWHILE[act.meanwhile](self)
        driver.signal(signal.SIGCONT)
        self._finish(driver)
        undo()

    def _rival(self) -> Any:
        self._finish(self._drive())
        return _nothing

    def _more_data(self) -> Any:
        self._produce(self._rng.randint(20, 100))
        self._archive()
        return self._rival()

    def _rewrite(self) -> Any:
        """Replace the table's files by copies in one snapshot, as a compaction does."""
        with open_tables(self._catalog(), self._table) as (table, _):
            files = [task.file for task in table.scan().plan_files()] if table is not None else []
            if table is None or not files:
                return _nothing
            with table.transaction() as transaction, transaction.update_snapshot().overwrite() as overwrite:
                for file in files:
                    path = file.file_path.replace(".parquet", "-rewritten.parquet")
                    with table.io.new_input(file.file_path).open() as old, table.io.new_output(path).create() as new:
                        new.write(old.read())
                    overwrite.delete_data_file(file)
                    overwrite.append_data_file(parquet_file_to_data_file(table.io, table.metadata, path))
        return _nothing

    def _stranger(self) -> Any:
        with open_tables(self._catalog(), self._table) as (table, _):
            if table is not None:
                with (
                    table.transaction() as transaction,
                    transaction.update_snapshot({"by": "a stranger"}).fast_append(),
                ):
                    pass
        return _nothing

    def _lock_catalog(self) -> Any:
        database = sqlite3.connect(self.directory / "catalog.db", isolation_level=None)
        database.execute("BEGIN EXCLUSIVE")
        return database.close

    def _damage(self) -> Any:
        """Flip a bit near the end of a later object, within its last batch's checksum or the bytes it covers."""
        key, content = self._later_object()
        at = len(content) - self._rng.randint(1, min(40, len(content)))
        self._put(key, content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        return lambda: self._put(key, content)

    def _damage_and_rival(self) -> Any:
        undo = self._damage()
        self._finish(self._drive())
        undo()
        return _nothing

    def _delete(self) -> Any:
        key, content = self._later_object()
        self._world.s3.delete_object(Bucket=self._world.stack.bucket, Key=key)
        return lambda: self._put(key, content)

    def _later_object(self) -> tuple[str, bytes]:
        keys = self._keys(f"{self.topic}/backup/")
        key = self._rng.choice(keys[len(keys) // 2 :])
        return key, self._world.s3.get_object(Bucket=self._world.stack.bucket, Key=key)["Body"].read()

    def _put(self, key: str, content: bytes) -> None:
        self._world.s3.put_object(Bucket=self._world.stack.bucket, Key=key, Body=content)

    # --- processes ---

    def _drive(self, failpoints: str = "") -> Job:
        sizes = {"task_bytes": self.scenario.task_bytes, "run_bytes": self.scenario.run_bytes}
        patches = {"partition": sizes, "s3_attempts": 2, "commit_guard": self.scenario.guard}
        return self._launch("partition", patches=patches, failpoints=failpoints)

    def _launch(self, do: str, *, hurt: bool = True, **what: Any) -> Job:
        environment = {
            **self._world.stack.environment(),
            "WAYBILL_CONFIG": str(self.directory / "streams.yaml"),
            "AIRFLOW_CONN_ICEBERG_DEFAULT": json.dumps(
                {
                    "conn_type": "iceberg",
                    "host": self._catalog()["uri"],
                    "extra": {"type": "sql", "warehouse": self._world.stack.warehouse},
                }
            ),
        }
        if hurt:
            s3 = json.loads(environment["AIRFLOW_CONN_AWS_DEFAULT"])
            s3["extra"]["endpoint_url"] = self._s3.endpoint_url
            environment["AIRFLOW_CONN_AWS_DEFAULT"] = json.dumps(s3)
        return self._world.lanes.launch(Launch(do, stream=STREAM, environment=environment, **what), self.directory)

    def _ended(self, job: Job, *, or_stopped: bool = False) -> bool:
        if job.wait(_TIMEOUT_SECONDS, or_stopped=or_stopped):
            return True
        job.signal(signal.SIGUSR1)  # logs the stack of every thread
        time.sleep(0.5)
        job.signal(signal.SIGKILL)
        job.wait(10.0)
        self._fault("hung", f"{job.launch.do} {job.number} took {job.seconds:.0f} s: {job.log}")
        return False

    def _finish(self, job: Job) -> list[dict[str, Any]]:
        return self._reports_of(job) if self._ended(job) else []

    def _reports_of(self, job: Job) -> list[dict[str, Any]]:
        """Return the reports of a driver that has ended; count its error or record a fault."""
        answer = job.answer()
        if job.exit_code != 0 or answer is None:
            self._fault("crashed", f"{job.launch.do} {job.number} ended with {job.exit_code}: {job.log}")
            return []
        if "error" in answer:
            self.result.errors[answer["error"]] += 1
            if answer["error"] not in _RETRIABLE or not answer["retriable"]:
                self._fault("stopped", f"{answer['error']}: {answer['message']}")
            return []
        reports: list[dict[str, Any]] = answer["reports"]
        self.result.outcomes.update(report["outcome"] for report in reports)
        return reports

    # --- checks ---

    def _run_to_the_end(self) -> None:
        for _ in range(_MAX_FINAL_RUNS):
            reports = self._finish(self._drive())
            if reports and reports[-1]["outcome"] == "nothing_new" and not reports[-1]["faults"]:
                return
        self._fault("stuck", f"{_MAX_FINAL_RUNS} runs without faults left input: {self.directory}")

    def _check(self) -> None:
        verified = self._launch("command", hurt=False, arguments=("verify", STREAM))
        assert verified.wait(_TIMEOUT_SECONDS), f"verify hangs: {verified.log}"
        if (verified.answer() or {}).get("exit") != 0:
            self._fault("verify", f"waybill verify reported faults: {verified.log}")
        servers = self._world.stack.bootstrap_servers
        self.result.checked = check(self._catalog(), self._table, self.topic, self.scenario.partitions, servers)
        self.result.faults += self.result.checked.faults
        if self.result.checked.messages != self._written:
            self._fault("harness", f"{self.result.checked.messages} of {self._written} messages are in Kafka")
        self.result.orphans = self._count_orphans()

    def _count_orphans(self) -> int:
        existing, referenced = set(), set()
        with open_tables(self._catalog(), self._table) as tables:
            for table in filter(None, tables):
                prefix = table.location().removeprefix(f"s3://{self._world.stack.bucket}/") + "/data/"
                existing |= {f"s3://{self._world.stack.bucket}/{key}" for key in self._keys(prefix)}
                if table.metadata.snapshots:
                    referenced |= set(table.inspect.all_files().column("file_path").to_pylist())
        missing = referenced - existing
        if missing:
            self._fault("gone", f"{len(missing)} files that snapshots reference do not exist: {min(missing)}")
        return len(existing - referenced)

    def _keys(self, prefix: str) -> list[str]:
        """Return the keys in order, without the empty folder objects that Arrow leaves for removed files."""
        pages = self._world.s3.get_paginator("list_objects_v2").paginate(Bucket=self._world.stack.bucket, Prefix=prefix)
        keys = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
        return sorted((key for key in keys if not key.endswith("/")), key=lambda key: key.rpartition("_")[2])

    def _fault(self, kind: str, what: str) -> None:
        self.result.faults.append(Fault(kind, 1, what))

    def _catalog(self) -> dict[str, str]:
        stack = self._world.stack
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.directory}/catalog.db?timeout={_LOCK_SECONDS}",
            "warehouse": stack.warehouse,
            "s3.endpoint": stack.s3_endpoint_url,
            "s3.region": "us-east-1",
            "s3.access-key-id": stack.s3_access_key,
            "s3.secret-access-key": stack.s3_secret_key,
        }

    def _config(self) -> dict[str, Any]:
        return {
            "version": 1,
            "storage": {"bucket": self._world.stack.bucket, "prefix": self.topic},
            "zookeeper": {"root": self.topic},
            "streams": {
                STREAM: {
                    "topics": [self.topic],
                    "upload": {"max_bytes": self.scenario.max_bytes, "max_age": "0s"},
                    "parser": {
                        "name": "json",
                        "event_time": {"field": "at", "format": "epoch_ms"},
                        "message_id": "id",
                    },
                    "table": self._table,
                    "partition_by": "day",
                }
            },
        }


def _nothing() -> None:
    pass


_ACTS = {
    Kind.KILL: PartitionScene._kill,
    Kind.FREEZE: PartitionScene._freeze,
    Kind.CALLS: PartitionScene._calls,
    Kind.RIVALS: PartitionScene._rivals,
}
_MEANWHILE = {
    Meanwhile.RIVAL: PartitionScene._rival,
    Meanwhile.MORE_DATA: PartitionScene._more_data,
    Meanwhile.REWRITE: PartitionScene._rewrite,
    Meanwhile.STRANGER: PartitionScene._stranger,
    Meanwhile.CATALOG_LOCKED: PartitionScene._lock_catalog,
    Meanwhile.DAMAGE: PartitionScene._damage,
    Meanwhile.DELETE: PartitionScene._delete,
    Meanwhile.DAMAGE_AND_RIVAL: PartitionScene._damage_and_rival,
}
