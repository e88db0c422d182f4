"""Drills: break the real stack, wait for the alert, repair it with the commands that a person would type, verify.

`make drills` runs them and prints a table; `make test` and `make test-deep` leave them out. The watch is a process of
its own, `waybill watch --every 5s`. Its messages go to a mail server with TLS and login, and to an HTTP server that
answers as Slack. Limits are a minute where a service would have hours.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from alert_servers import AlertServers, alert_servers
from archived_stream import ArchivedStream
from confluent_kafka.admin import AdminClient, NewTopic
from test_unclean_election import FOLLOWER, LEADER, wait_until_led_by

from devstack import Stack
from devstack.airflow import SCHEDULER
from waybill.archive.ingest import plan_lanes, run_lane

pytestmark = [pytest.mark.drill, pytest.mark.faults, pytest.mark.timeout(1500)]

SHORT = os.environ.get("WAYBILL_DRILLS") == "short"
"""For development: S3 does not answer for one minute instead of ten."""
_ALERTS = """\
alerts:
  resolve_after: 1m
  channels:
    team: {type: email, connection: mail, to: [ann@example.com]}
    chat: {type: slack, connection: slack_hook}
"""
_JOBS = Path(__file__).parents[2] / "spark_jobs"


@dataclass
class Drill:
    """One line of the table."""

    name: str
    broken: str
    """The damage."""
    limit: str
    """The promise that reports the damage, and its limit."""
    detected_seconds: float | None = None
    """From the break to the first mail."""
    incidents: list[str] = field(default_factory=list)
    """The subjects of the mails that opened one."""
    messages: int = 0
    """All mails of the drill, those about the end included. Slack got as many."""
    commands: list[str] = field(default_factory=list)
    verify: str = ""
    """The last line of `waybill verify`."""


class Room:
    """The stream of a drill, its watch, and its messages."""

    def __init__(self, drill: Drill, stream: ArchivedStream, servers: AlertServers) -> None:
        self.drill = drill
        self.stream = stream
        self.servers = servers
        self.broken_at = 0.0

    def breaks(self) -> None:
        """Record the time of the damage."""
        self.broken_at = time.monotonic()
        assert self.servers.mails == [], [str(mail["Subject"]) for mail in self.servers.mails]

    def wait_for_alert(self, seconds: float = 300.0) -> str:
        """Wait for the first mail, and return its text."""
        wait_until(lambda: bool(self.servers.mails), seconds, "nobody was told")
        self.drill.detected_seconds = round(time.monotonic() - self.broken_at, 1)
        body = self.servers.mails[0].get_body(("plain",))
        assert body is not None
        return str(body.get_content())

    def wait_for_the_end(self, seconds: float = 400.0) -> None:
        """Wait until every incident has ended, and record the messages."""

        def has_ended() -> bool:
            subjects = [str(mail["Subject"]) for mail in self.servers.mails]
            ended = sum(subject.startswith("[resolved]") for subject in subjects)
            return ended > 0 and 2 * ended == len(subjects)

        wait_until(has_ended, seconds, "an incident did not end")
        subjects = [str(mail["Subject"]) for mail in self.servers.mails]
        self.drill.incidents = [subject for subject in subjects if not subject.startswith("[resolved]")]
        self.drill.messages = len(subjects)
        assert len(self.drill.incidents) == 1, "one cause, one alert"
        assert len(self.drill.commands) <= 3
        wait_until(lambda: len(self.servers.bodies("/services/T0/B0/x")) == len(subjects), 60, "Slack was not told")

    def command(self, *arguments: str) -> str:
        """Run a command of `waybill` as a person would, and return what it prints."""
        self.drill.commands.append(" ".join(("waybill", *arguments)))
        ran = self.stream.waybill(*arguments)
        assert ran.code == 0, ran.out + ran.err
        return ran.out

    def by_hand(self, what: str) -> None:
        """Record a step that a person takes outside of Waybill."""
        self.drill.commands.append(what)

    def verify(self) -> None:
        """Verify the archive, the table and the quarantine."""
        self.stream.partition()
        ran = self.stream.waybill("verify", self.stream.name)
        assert ran.code == 0, ran.out + ran.err
        self.drill.verify = ran.out.splitlines()[-1]
        time.sleep(10)
        assert len(self.servers.mails) == self.drill.messages, "nothing was told afterwards"


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.5)


@pytest.fixture(scope="module")
def table() -> Iterator[list[Drill]]:
    """The drills that have ended. They are stored as JSON at the end, if WAYBILL_DRILLS_JSON names a file."""
    drills: list[Drill] = []
    yield drills
    if path := os.environ.get("WAYBILL_DRILLS_JSON"):
        Path(path).write_text(json.dumps([asdict(drill) for drill in drills], indent=1) + "\n")


@pytest.fixture
def begin(stack: Stack, tmp_path: Path, topic_name: str, table: list[Drill], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a context manager that begins a drill: it yields a `Room` whose watch runs."""

    @contextmanager
    def begin(
        drill: Drill, promises: str, *, sections: str = "", stream: ArchivedStream | None = None
    ) -> Iterator[Room]:
        with alert_servers(tmp_path) as servers:
            for name, value in servers.environment.items():
                monkeypatch.setenv(name, value)
            stream = stream or ArchivedStream(tmp_path, topic_name, partitions=1)
            text = stream.file.read_text().replace("streams:\n", f"{_ALERTS}{sections}streams:\n", 1)
            stream.file.write_text(f"{text}    promises: {promises}\n")
            room = Room(drill, stream, servers)
            environment = {**os.environ, "WAYBILL_CONFIG": str(stream.file)}
            command = [str(Path(sys.executable).with_name("waybill")), "watch", "--every", "5s"]
            with (tmp_path / "watch.log").open("wb") as log:
                watch = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            try:
                yield room
            finally:
                watch.terminate()
                watch.wait(timeout=60)
            table.append(drill)
            print(f"\n{json.dumps(asdict(drill), indent=1)}", flush=True)

    return begin


def test_zookeeper_wiped(stack: Stack, begin: Any) -> None:
    drill = Drill("ZooKeeper wiped", "ZooKeeper was stopped, and its data deleted", "service: it answers")
    with begin(drill, "{archive_lag: 1m}") as room:
        room.stream.produce_events(100)
        room.stream.ingest()
        try:
            stack.stop_zookeeper()
            stack.wipe_zookeeper()
            room.breaks()
            assert "ZooKeeper" in room.wait_for_alert()
        finally:
            stack.start_zookeeper()
        room.by_hand("start ZooKeeper")
        room.stream.produce_events(100, first=100)
        room.stream.ingest()
        room.wait_for_the_end()
        room.verify()


def test_topic_over_retention(begin: Any, stack: Stack, tmp_path: Path, topic_name: str) -> None:
    settings = {"retention.ms": "20000", "segment.ms": "2000"}
    drill = Drill(
        "topic over retention", "no lane ran, and Kafka deleted messages after 20 s", "retention_runway: at least 1m"
    )
    stream = ArchivedStream(tmp_path, topic_name, partitions=1, topic_config=settings)
    with begin(drill, "{retention_runway: 1m, archive_lag: off, table_lag: off}", stream=stream) as room:
        stream.produce_events(50)
        stream.ingest()
        time.sleep(10)  # a watch sees that nothing waits
        stream.produce_events(50, first=50)
        room.breaks()
        room.wait_for_alert()
        time.sleep(30)
        stream.produce_events(50, first=100)
        failures = [
            f for lane in plan_lanes(stream.config, stream.name) for f in run_lane(stream.config, lane).failures
        ]
        assert failures
        room.command("gaps", "accept", stream.topic, "0", "--reason", "no lane ran", "--by", "ann")
        stream.ingest()
        room.wait_for_the_end()
        room.verify()


def test_log_truncated_by_an_unclean_election(begin: Any, stack: Stack, tmp_path: Path, topic_name: str) -> None:
    drill = Drill(
        "log truncated by an unclean election", "a replica without the last messages became leader", "named_stop: none"
    )
    stream = ArchivedStream(tmp_path, topic_name + "-unused", partitions=1)
    stream.topic = topic_name
    stream.file.write_text(stream.file.read_text().replace(f"[{topic_name}-unused]", f"[{topic_name}]"))
    settings = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1", "retention.ms": "-1"}
    topic = NewTopic(topic_name, 1, replica_assignment=[[LEADER, FOLLOWER]], config=settings)
    admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers})
    admin.create_topics([topic])[topic_name].result(timeout=30)
    wait_until_led_by(stack, topic_name, LEADER, in_sync=[FOLLOWER, LEADER])
    with begin(drill, "{archive_lag: off, table_lag: off}", stream=stream) as room:
        stream.produce_events(10)
        try:
            stack.stop_broker(FOLLOWER)
            wait_until_led_by(stack, topic_name, LEADER, in_sync=[LEADER])
            stream.produce_events(10, first=10)
            stream.ingest()
            room.breaks()
            stack.kill_broker(LEADER)
            stack.start_broker(FOLLOWER)
            wait_until_led_by(stack, topic_name, FOLLOWER, in_sync=[FOLLOWER])
            stream.produce_events(30, first=100)
            for lane in plan_lanes(stream.config, stream.name):
                run_lane(stream.config, lane)
            assert "LogTruncated" in room.wait_for_alert()
        finally:
            for broker in (FOLLOWER, LEADER):
                state = stack.status().server(f"kafka-{broker}")
                if state is None or not state.running:
                    stack.start_broker(broker)
        room.command("gaps", "accept", stream.topic, "0", "--reason", "power cut", "--by", "ann")
        stream.ingest()
        room.wait_for_the_end()
        room.verify()


def test_parser_wrong_for_a_day(begin: Any) -> None:
    drill = Drill(
        "parser wrong for a day", "the config named a field that messages do not have", "quarantine_share: at most 10%"
    )
    with begin(drill, "{archive_lag: off, table_lag: off, late_share: off}") as room:
        stream = room.stream
        right = stream.file.read_text()
        stream.file.write_text(right.replace("field: time", "field: tiem"))
        stream.produce_events(2000)
        room.breaks()
        stream.ingest()
        stream.partition()
        assert "quarantine share" in room.wait_for_alert()
        stream.file.write_text(right)
        room.by_hand("correct the config")
        room.command("quarantine", "retry", stream.name)
        stream.produce_events(20_000, first=5000)
        stream.ingest()
        stream.partition()
        room.wait_for_the_end()
        room.verify()
        with stream.tables() as tables:
            assert tables.main.scan().count() == 22_000


def test_flood_of_poison_messages(begin: Any) -> None:
    drill = Drill("flood of poison messages", "half of the messages were no JSON", "quarantine_share: at most 10%")
    with begin(drill, "{archive_lag: off, table_lag: off, late_share: off}") as room:
        stream = room.stream
        producer = stream.producer()
        for _ in range(2000):
            producer.produce(stream.topic, b"\x00poison", b"k", 0)
        producer.flush(30)
        stream.produce_events(2000)
        room.breaks()
        stream.ingest()
        stream.partition()
        assert "quarantine share" in room.wait_for_alert()
        assert "not_json" in room.command("quarantine", "ls", stream.name)
        stream.produce_events(20_000, first=5000)
        stream.ingest()
        stream.partition()
        room.wait_for_the_end()
        room.verify()


def test_s3_down_for_ten_minutes(stack: Stack, begin: Any) -> None:
    minutes = 1 if SHORT else 10
    drill = Drill("S3 down for ten minutes", f"the S3 server was killed for {minutes} min", "service: it answers")
    with begin(drill, "{archive_lag: 1m, table_lag: 2m}") as room:
        stream = room.stream
        stream.produce_events(100)
        stream.ingest()
        stream.partition()
        time.sleep(10)
        try:
            stack.kill_s3()
            room.breaks()
            assert "S3" in room.wait_for_alert()
            stream.produce_events(100, first=100)
            time.sleep(minutes * 60)
        finally:
            stack.start_s3()
        room.by_hand("start S3")
        stream.ingest()
        stream.partition()
        room.wait_for_the_end()
        room.verify()


_LANE = """
import sys
from waybill.config.models import load_config
from waybill.archive.ingest import plan_lanes, run_lane
config = load_config()
for lane in plan_lanes(config, "events"):
    run_lane(config, lane)
"""


def test_lane_frozen(begin: Any) -> None:
    drill = Drill("lane frozen by SIGSTOP", "the process of a lane was stopped at its work", "archive_lag: at most 1m")
    with begin(drill, "{archive_lag: 1m, table_lag: off, late_share: off}") as room:
        stream = room.stream
        limits = "ingest: {budget: 5m, rate_limit: 20KiB}"
        stream.file.write_text(stream.file.read_text().replace("ingest: {lanes: 2}", limits))
        stream.produce_events(20_000)
        environment = {**os.environ, "WAYBILL_CONFIG": str(stream.file)}
        lane = subprocess.Popen([sys.executable, "-c", _LANE], env=environment)
        try:
            time.sleep(15)
            assert lane.poll() is None
            lane.send_signal(signal.SIGSTOP)
            room.breaks()
            assert "archive lag" in room.wait_for_alert()
            assert psutil.Process(lane.pid).status() == psutil.STATUS_STOPPED
        finally:
            lane.kill()
            lane.wait()
        room.by_hand("kill -9 PID, or clear the task in Airflow")
        stream.file.write_text(stream.file.read_text().replace(limits, "ingest: {lanes: 2}"))
        wait_until(lambda: is_archived(stream), 120, "the lock of the frozen lane stayed")
        room.wait_for_the_end()
        room.verify()


def is_archived(stream: ArchivedStream) -> bool:
    for lane in plan_lanes(stream.config, stream.name):
        run_lane(stream.config, lane)
    [row] = stream.waybill("offsets", "--json").document
    return bool(row["committed_offset"] == row["end_offset"])


def test_scheduler_stopped(stack: Stack, begin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drill = Drill("scheduler stopped", "Airflow's scheduler was stopped by SIGSTOP", "service Airflow: it answers")
    (tmp_path / "none.yaml").write_text("version: 1\nstorage: {bucket: waybill, prefix: drill}\nstreams: {}\n")
    stack.start_airflow({"WAYBILL_CONFIG": str(tmp_path / "none.yaml")})
    try:
        for name, value in stack.environment().items():
            monkeypatch.setenv(name, value)
        with begin(
            drill, "{archive_lag: 1m, table_lag: off}", sections="airflow: {connection: waybill_airflow}\n"
        ) as room:
            room.stream.produce_events(100)
            room.stream.ingest()
            time.sleep(10)
            state = stack.status().server(SCHEDULER)
            assert state is not None
            # The process that the stack starts is the parent of the scheduler.
            scheduler = [psutil.Process(state.pid), *psutil.Process(state.pid).children(recursive=True)]
            for process in scheduler:
                process.suspend()
            room.stream.produce_events(100, first=100)
            room.breaks()
            assert "no heartbeat of its scheduler" in room.wait_for_alert()
            time.sleep(60)  # the lag is part of the same incident
            for process in scheduler:
                process.resume()
            room.by_hand("start the scheduler")
            room.stream.ingest()
            room.wait_for_the_end()
            room.verify()
    finally:
        stack.stop_airflow()


def test_disk_of_a_spark_worker_full(begin: Any, tmp_path: Path) -> None:
    drill = Drill(
        "disk of a Spark worker full",
        "no process of the Spark application could write to a file (`prlimit --fsize=0`)",
        "table_lag: at most 1m",
    )
    with begin(drill, "{archive_lag: 1m, table_lag: 1m, late_share: off}") as room:
        stream = room.stream
        stream.produce_events(20_000)
        stream.ingest()
        time.sleep(6)
        environment = {**os.environ, "WAYBILL_CONFIG": str(stream.file)}
        job = [str(_JOBS / "partition.py"), "--stream", stream.name, "--config", str(stream.file)]
        submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]", *job]
        room.breaks()
        full = subprocess.run(
            ["prlimit", "--fsize=0", *submit],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert full.returncode != 0
        # Python says this when it cannot write to any directory for temporary files.
        assert "No usable temporary directory" in full.stderr + full.stdout, full.stderr[-3000:]
        room.wait_for_alert()
        room.by_hand("free the disk")
        again = subprocess.run(submit, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert again.returncode == 0, again.stderr[-3000:]
        room.by_hand("clear the task in Airflow, or wait for the next run")
        room.wait_for_the_end()
        room.verify()


def test_flood_of_late_data(begin: Any) -> None:
    drill = Drill("flood of late data", "two thirds of the rows were months late", "late_share: at most 20%")
    with begin(drill, "{archive_lag: off, table_lag: off}") as room:
        stream = room.stream
        produce_on_time(stream, 1000)
        stream.ingest()
        stream.partition()
        time.sleep(10)
        stream.produce_events(2000, first=5000)
        room.breaks()
        stream.ingest()
        stream.partition()
        assert "late share" in room.wait_for_alert()
        room.command("lateness", stream.name)
        produce_on_time(stream, 10_000)
        stream.ingest()
        stream.partition()
        room.wait_for_the_end()
        room.verify()


def produce_on_time(stream: ArchivedStream, count: int) -> None:
    """Produce events whose time is now."""
    producer = stream.producer()
    for number in range(count):
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        producer.produce(stream.topic, json.dumps({"id": f"{now}-{number}", "time": now}).encode(), b"k", 0)
        producer.poll(0)
    producer.flush(30)
