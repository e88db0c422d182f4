"""Playing a scenario on the real stack: the watch runs in this process, and a real HTTP server takes its alerts."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from devstack import Stack
from kafka_chaos.scenario import Hurt, Scenario, Step, expected_promises
from waybill.config import load_config
from waybill.connections import Connection, find_connection
from waybill.watch.run import run_watch

__all__ = ["Played", "play"]

REPLICA_PROMISES = {
    "kafka_offline_partitions",
    "kafka_under_min_isr",
    "kafka_single_in_sync_replica",
    "kafka_under_replicated",
}
_SECONDS = 90.0
_SPEED = 30
"""The watch's clock: `alerts.resolve_after` of a minute is two seconds."""
_BLIP_SECONDS = 2.0
_CONFIG = """\
version: 1
storage: {{bucket: waybill, prefix: {name}}}
zookeeper: {{root: {name}}}
alerts:
  resolve_after: 1m
  channels: {{hook: {{type: webhook, connection: chaos_hook}}}}
kafka:
  promises:
    offline_partitions: {{limit: 0s}}
    under_min_isr: {{limit: 0s}}
    single_in_sync_replica: {{limit: 0s}}
    under_replicated: {{limit: 0s}}
streams:
  events:
    topics: [{topics}]
    parser: {{event_time: {{field: time}}}}
    table: {table}.events
"""


@dataclass
class Played:
    """What came of a scenario."""

    seed: int
    faults: list[str] = field(default_factory=list)
    """What is wrong; nothing if the seed is sound."""
    detected: dict[tuple[Hurt, str], list[float]] = field(default_factory=dict)
    """Seconds from what happened to the watch that reported it."""
    resolved: dict[tuple[Hurt, str], list[float]] = field(default_factory=dict)
    """Seconds from the broker's return to the alert that it is over."""
    incidents: int = 0
    seconds: float = 0.0


class _Alerts:
    """The webhook."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    @contextmanager
    def served(self) -> Iterator[str]:
        bodies = self.bodies

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/hook"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class _Scene:
    def __init__(self, stack: Stack, scenario: Scenario, directory: Path, url: str, run: str) -> None:
        self.stack, self.scenario, self.directory = stack, scenario, directory
        self.name = f"kchaos-{run}-{scenario.seed}"
        self.file = directory / f"{self.name}.yaml"
        topics = ", ".join(f"{self.name}-{kind}" for kind in scenario.topics)
        self.file.write_text(_CONFIG.format(name=self.name, topics=topics, table=f"t_{run}_{scenario.seed}"))
        self.config = load_config(self.file)
        self._hook = Connection(conn_id="chaos_hook", conn_type="http", host=url)
        self._began = time.monotonic()
        self.admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers, "log_level": 0})

    def create_topics(self) -> None:
        news = [
            NewTopic(
                f"{self.name}-{kind}",
                3,
                replica_assignment=kind.replicas,
                config={"min.insync.replicas": str(kind.min_in_sync)},
            )
            for kind in self.scenario.topics
        ]
        for created in self.admin.create_topics(news).values():
            created.result(timeout=30)

    def delete_topics(self) -> None:
        for deleted in self.admin.delete_topics([f"{self.name}-{kind}" for kind in self.scenario.topics]).values():
            deleted.result(timeout=30)

    def watch(self) -> set[str]:
        """Watch once, and return the promises about replicas that have an open incident."""
        report = run_watch(self.config, now_ms=self._now_ms, find=self._find, directory=self.directory)
        return {incident.promise for incident in report.open} & REPLICA_PROMISES

    def hurt(self, step: Step) -> None:
        match step.hurt:
            case Hurt.KILL:
                self.stack.kill_broker(step.broker)
            case Hurt.FREEZE:
                self.stack.pause_server(f"kafka-{step.broker}")
            case Hurt.RESTART:
                self.stack.stop_broker(step.broker)

    def heal(self, step: Step) -> None:
        if step.hurt is Hurt.FREEZE:
            self.stack.resume_server(f"kafka-{step.broker}")
        else:
            self.stack.start_broker(step.broker)

    def _now_ms(self) -> int:
        return 1_800_000_000_000 + int((time.monotonic() - self._began) * 1000 * _SPEED)

    def _find(self, conn_id: str) -> Connection:
        return self._hook if conn_id == "chaos_hook" else find_connection(conn_id)


def play(stack: Stack, scenario: Scenario, directory: Path, run: str) -> Played:
    """Play a scenario, and return what is wrong and how long it took."""
    played, alerts = Played(scenario.seed), _Alerts()
    began = time.monotonic()
    with alerts.served() as url:
        scene = _Scene(stack, scenario, directory, url, run)
        scene.create_topics()
        try:
            _wait(scene, set(), time.monotonic(), played, "before anything happened")
            for number, step in enumerate(scenario.steps):
                _play_step(scene, number, step, played)
            _check_alerts(scenario, alerts.bodies, played)
        finally:
            scene.delete_topics()
    played.seconds = time.monotonic() - began
    return played


def _play_step(scene: _Scene, number: int, step: Step, played: Played) -> None:
    place = f"step {number + 1} ({step.hurt} broker {step.broker})"
    begun = time.monotonic()
    scene.hurt(step)
    try:
        if step.blip:
            time.sleep(_BLIP_SECONDS)  # without a watch: one that waits for the frozen broker would prolong the blip
        else:
            expected = expected_promises(scene.scenario.topics, {step.broker})
            for promise, seconds in _wait(scene, expected, begun, played, place).items():
                played.detected.setdefault((step.hurt, promise), []).append(seconds)
    finally:
        healed = time.monotonic()
        scene.heal(step)
    for promise, seconds in _wait(scene, set(), healed, played, f"{place}, after its return").items():
        played.resolved.setdefault((step.hurt, promise), []).append(seconds)


def _wait(scene: _Scene, expected: set[str], begun: float, played: Played, place: str) -> dict[str, float]:
    """Watch until exactly the expected incidents are open. Return when each was opened or resolved, in seconds."""
    changed: dict[str, float] = {}
    before: set[str] | None = None
    while True:
        found = scene.watch()
        now = time.monotonic() - begun
        for promise in found ^ (before if before is not None else found if not expected else set()):
            changed[promise] = now
        before = found
        if found == expected:
            return changed
        if now > _SECONDS:
            played.faults.append(f"{place}: open are {sorted(found)}, and not {sorted(expected)}, after {now:.0f} s")
            return changed
        time.sleep(0.2)


def _check_alerts(scenario: Scenario, bodies: list[dict[str, Any]], played: Played) -> None:
    """Each state of a step is one incident, which was told once when it began and once when it was over."""
    told = [
        (body["incident"]["id"], body["kind"]) for body in bodies if body["incident"]["promise"] in REPLICA_PROMISES
    ]
    incidents = {body["incident"]["id"]: body["incident"]["promise"] for body in bodies}
    kinds: dict[str, Counter[str]] = {}
    for incident, kind in told:
        kinds.setdefault(incident, Counter())[kind] += 1
    for incident, counts in kinds.items():
        if counts != Counter(opened=1, resolved=1):
            played.faults.append(f"incident {incident} was told {dict(counts)}")
    expected: Counter[str] = Counter()
    for step in scenario.steps:
        if not step.blip:
            expected.update(expected_promises(scenario.topics, {step.broker}))
    found = Counter(incidents[incident] for incident in kinds)
    if found != expected:
        played.faults.append(f"incidents are {dict(found)}, and not {dict(expected)}")
    played.incidents = len(kinds)
