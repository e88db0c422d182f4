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
from kafka_chaos.scenario import Hit, Hurt, Scenario, Step, expected_of, expected_promises
from waybill.config.connections import Connection, find_connection
from waybill.config.models import load_config
from waybill.config.names import kafka_memory_key
from waybill.services.store import Store
from waybill.watch.incidents.finding import REACHABLE
from waybill.watch.kafka_cluster.isr_history import ReplicaState
from waybill.watch.promises.kafka_figures import KafkaMemory
from waybill.watch.promises.watch_run import run_watch

CONTROLLERS = "kafka_controllers"
_STATES = {
    ReplicaState.OFFLINE: "kafka_offline_partitions",
    ReplicaState.UNDER_MIN_ISR: "kafka_under_min_isr",
    ReplicaState.SINGLE_IN_SYNC: "kafka_single_in_sync_replica",
    ReplicaState.UNDER_REPLICATED: "kafka_under_replicated",
}
_SECONDS = 90.0
_LONGEST_WATCH_SECONDS = 30.0
_SPEED = 30
"""The watch's clock: `alerts.resolve_after` of a minute is two seconds."""
_PATIENT_LIMIT = "3h"
"""Six minutes by the watch's clock: longer than a step of a patient scenario."""
_CONTROLLERS_SECONDS = 15.0
"""The limit of the promise about controllers: an election of a controller is over before."""
_CONFIG = """\
version: 1
storage: {{bucket: waybill, prefix: {name}}}
zookeeper: {{root: {name}}}
alerts:
  resolve_after: 1m
  channels: {{hook: {{type: webhook, connection: chaos_hook}}}}
kafka:
  promises:
    offline_partitions: {{limit: {limit}}}
    under_min_isr: {{limit: {limit}}}
    single_in_sync_replica: {{limit: {limit}}}
    under_replicated: {{limit: {limit}}}
    controllers: {{limit: {controllers:.0f}s}}
    disk_used: {{limit: 99%}}
    leader_skew: {{min_partitions: 1000000}}  # other tests' topics may be on the same brokers
streams:
  events:
    topics: [{topics}]
    parser: {{event_time: {{field: time}}}}
    table: {table}.events
"""


@dataclass
class Played:
    """The result of a scenario."""

    seed: int
    faults: list[str] = field(default_factory=list)
    """The faults; empty if the seed has none."""
    detected: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """By hurt and promise: seconds from what happened to the watch that reported it."""
    resolved: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """By hurt and promise: seconds from the broker's return to the alert that it is over."""
    longest_watch: tuple[float, str] = (0.0, "")
    """Seconds of the longest watch, and the step."""
    incidents: int = 0
    short_states: int = 0
    """States of topics that ended before their limit, and are in the history."""
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
        self.file.write_text(
            _CONFIG.format(
                name=self.name,
                topics=topics,
                table=f"t_{run}_{scenario.seed}",
                limit=_PATIENT_LIMIT if scenario.patient else "0s",
                controllers=_CONTROLLERS_SECONDS * _SPEED,
            )
        )
        self.config = load_config(self.file)
        self._hook = Connection(conn_id="chaos_hook", conn_type="http", host=url)
        self._began = time.monotonic()
        self.hurt_at: list[float] = []
        self.two_away: list[tuple[float, float]] = []
        """From when until when two brokers were away, with the rest of the watch that ran then."""
        self.opened: dict[str, float] = {}
        """When the watch opened each incident about Kafka, by its id."""
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
        time.sleep(1.0)  # until all brokers know the topics

    def delete_topics(self) -> None:
        for deleted in self.admin.delete_topics([f"{self.name}-{kind}" for kind in self.scenario.topics]).values():
            deleted.result(timeout=30)

    def watch(self) -> set[str]:
        """Watch once, and return the promises about Kafka that have an open incident."""
        report = run_watch(self.config, now_ms=self._now_ms, find=self._find, directory=self.directory)
        found = [each for each in report.open if is_about_kafka(each.promise, each.subject)]
        for each in found:
            self.opened.setdefault(each.id, time.monotonic())
        return {each.promise for each in found}

    def memory(self) -> KafkaMemory:
        """Return the readings of the cluster that the watch has stored."""
        with Store.of(self.config.storage, self._find) as store:
            return KafkaMemory.parse(store.read_if_exists(kafka_memory_key(store.prefix)))

    def states_of(self, away: set[int]) -> set[tuple[str, str]]:
        """Return the states that the scenario's topics have while brokers are away: promise and topic."""
        return {
            (promise, f"{self.name}-{kind}") for kind in self.scenario.topics for promise in expected_of(kind, away)
        }

    def hurt(self, hit: Hit) -> None:
        self.hurt_at.append(time.monotonic())
        match hit.hurt:
            case Hurt.KILL:
                self.stack.kill_broker(hit.broker)
            case Hurt.FREEZE:
                self.stack.pause_server(f"kafka-{hit.broker}")
            case Hurt.RESTART:
                self.stack.stop_broker(hit.broker)

    def heal(self, hit: Hit) -> None:
        if hit.hurt is Hurt.FREEZE:
            self.stack.resume_server(f"kafka-{hit.broker}")
        else:
            self.stack.start_broker(hit.broker)

    def _now_ms(self) -> int:
        return 1_800_000_000_000 + int((time.monotonic() - self._began) * 1000 * _SPEED)

    def _find(self, conn_id: str) -> Connection:
        return self._hook if conn_id == "chaos_hook" else find_connection(conn_id)


def is_about_kafka(promise: str, subject: str) -> bool:
    """Return whether an incident is about Kafka: one of its promises, or that it does not answer."""
    return promise.startswith("kafka_") or (promise == REACHABLE and subject == "Kafka")


def play(stack: Stack, scenario: Scenario, directory: Path, run: str) -> Played:
    """Play a scenario, and return the faults and the durations."""
    played, alerts = Played(scenario.seed), _Alerts()
    began = time.monotonic()
    with alerts.served() as url:
        scene = _Scene(stack, scenario, directory, url, run)
        scene.create_topics()
        try:
            _wait(scene, set(), time.monotonic(), played, "before anything happened")
            for number, step in enumerate(scenario.steps):
                place = f"step {number + 1}"
                if scenario.patient:
                    _play_short_state(scene, place, step.first, played)
                elif step.second is None:
                    _play_one(scene, place, step.first, played)
                else:
                    _play_two(scene, place, step, step.second, played)
            _check_alerts(scene, alerts.bodies, played)
        finally:
            scene.delete_topics()
    played.seconds = time.monotonic() - began
    return played


def _play_one(scene: _Scene, place: str, hit: Hit, played: Played) -> None:
    place, hurt = f"{place} ({hit.hurt} broker {hit.broker})", str(hit.hurt)
    begun = time.monotonic()
    scene.hurt(hit)
    try:
        expected = expected_promises(scene.scenario.topics, {hit.broker})
        _note(played.detected, hurt, _wait(scene, expected, begun, played, place))
    finally:
        healed = time.monotonic()
        scene.heal(hit)
    _note(played.resolved, hurt, _wait(scene, set(), healed, played, f"{place}, after its return"))


def _play_two(scene: _Scene, place: str, step: Step, second: Hit, played: Played) -> None:
    """Hurt a second broker before the first is back. Without a majority, the controllers change no metadata."""
    topics, first = scene.scenario.topics, step.first
    place = f"{place} ({first.hurt} broker {first.broker}, {second.hurt} broker {second.broker})"
    begun = time.monotonic()
    scene.hurt(first)
    back = (second, first) if step.second_is_back_first else (first, second)
    one = expected_promises(topics, {first.broker})
    try:
        _note(played.detected, str(first.hurt), _wait(scene, one, begun, played, place))
        begun = time.monotonic()
        scene.hurt(second)
        # A broker that is stopped hands its leaderships over before, with the last majority.
        both = expected_promises(topics, {first.broker, second.broker}) if second.hurt is Hurt.RESTART else set()
        least = {CONTROLLERS} | (set() if both else one)
        found = _wait(scene, least, begun, played, place, most=one | both | {REACHABLE})
        _note(played.detected, "two at once", {CONTROLLERS: found[CONTROLLERS]} if CONTROLLERS in found else {})
    finally:
        scene.heal(back[0])
        scene.two_away.append((begun, time.monotonic() + _LONGEST_WATCH_SECONDS))
        left = expected_promises(topics, {back[1].broker})
        try:
            _wait(scene, left, time.monotonic(), played, f"{place}, after the return of broker {back[0].broker}")
        finally:
            healed = time.monotonic()
            scene.heal(back[1])
    found = _wait(scene, set(), healed, played, f"{place}, after the return of both")
    _note(played.resolved, "two at once", found)


def _play_short_state(scene: _Scene, place: str, hit: Hit, played: Played) -> None:
    """Wait until the watch has seen all states, with limits that are longer: no alert, but history."""
    place = f"{place} ({hit.hurt} broker {hit.broker}, short)"
    expected, known = scene.states_of({hit.broker}), len(scene.memory().history.ended)
    begun = time.monotonic()
    scene.hurt(hit)
    try:
        _wait_for_states(scene, expected, begun, played, place)
    finally:
        healed = time.monotonic()
        scene.heal(hit)
    _wait_for_states(scene, set(), healed, played, f"{place}, after its return")
    # While a frozen broker makes watches long, a controller can be away for longer than its limit.
    _wait(scene, set(), healed, played, f"{place}, after its return")
    ended = {
        (_STATES[each.state], each.topic)
        for each in scene.memory().history.ended[known:]
        if each.topic.startswith(f"{scene.name}-")
    }
    if ended != expected:
        played.faults.append(f"{place}: the history has {sorted(ended)}, and not {sorted(expected)}")
    played.short_states += len(ended)


def _note(times: dict[tuple[str, str], list[float]], hurt: str, found: dict[str, float]) -> None:
    for promise, seconds in found.items():
        times.setdefault((hurt, promise), []).append(seconds)


def _watch(scene: _Scene, played: Played, place: str) -> set[str]:
    begun = time.monotonic()
    found = scene.watch()
    played.longest_watch = max(played.longest_watch, (time.monotonic() - begun, place))
    return found


def _wait(
    scene: _Scene, least: set[str], begun: float, played: Played, place: str, most: set[str] | None = None
) -> dict[str, float]:
    """Watch until the expected incidents are open. Return when each was opened or resolved, in seconds.

    `most`: what may be open, too; None: nothing. While a broker is away, controllers may be: see `_check_alerts`.
    """
    changed: dict[str, float] = {}
    before: set[str] | None = None
    allowed = least | (most or set()) | ({CONTROLLERS} if least else set())
    while True:
        found = _watch(scene, played, place)
        now = time.monotonic() - begun
        for promise in found ^ (before if before is not None else found if not least else set()):
            changed[promise] = now
        before = found
        if least <= found <= allowed:
            return changed
        if now > _SECONDS:
            played.faults.append(f"{place}: open are {sorted(found)}, and not {sorted(least)}, after {now:.0f} s")
            return changed
        time.sleep(0.2)


def _wait_for_states(scene: _Scene, expected: set[tuple[str, str]], begun: float, played: Played, place: str) -> None:
    while True:
        _watch(scene, played, place)
        found = {
            (_STATES[state], tp.topic)
            for state, tps in scene.memory().history.open.items()
            for tp in tps
            if tp.topic.startswith(f"{scene.name}-")
        }
        if found == expected:
            return
        if time.monotonic() - begun > _SECONDS:
            played.faults.append(f"{place}: the watch has seen {sorted(found)}, and not {sorted(expected)}")
            return
        time.sleep(0.2)


def _check_alerts(scene: _Scene, bodies: list[dict[str, Any]], played: Played) -> None:
    """Each state of a step is one incident, reported once at its beginning and once at its end.

    There are no other reports.
    """
    incidents: dict[str, str] = {}
    details: dict[str, str] = {}
    kinds: dict[str, Counter[str]] = {}
    for body in bodies:
        incident = body["incident"]
        if is_about_kafka(incident["promise"], incident["subject"]):
            incidents[incident["id"]] = incident["promise"]
            details.setdefault(incident["id"], f"{incident['figure']}; {incident['detail']}")
            kinds.setdefault(incident["id"], Counter())[body["kind"]] += 1
    for incident, counts in kinds.items():
        if counts != Counter(opened=1, resolved=1):
            played.faults.append(f"incident {incident} was told {dict(counts)} ({details[incident]})")
    least, most = _expected_incidents(scene.scenario)
    found = Counter(promise for promise in incidents.values() if promise not in (CONTROLLERS, REACHABLE))
    for promise in sorted({*found, *least}):
        if not least[promise] <= found[promise] <= most[promise]:
            played.faults.append(
                f"{found[promise]} incidents about {promise}, and not {least[promise]} to {most[promise]}"
            )
    for incident, promise in incidents.items():
        opened = scene.opened.get(incident, 0.0)
        if promise == CONTROLLERS and not any(opened - hurt >= _CONTROLLERS_SECONDS for hurt in scene.hurt_at):
            played.faults.append(f"incident {incident}: no broker was away for {_CONTROLLERS_SECONDS} s")
        # Requests to any broker may go to one of the two that are away until they time out.
        if promise == REACHABLE and not any(since <= opened <= until for since, until in scene.two_away):
            played.faults.append(f"incident {incident}: not two of three brokers were away ({details[incident]})")
    played.incidents = len(kinds)


def _expected_incidents(scenario: Scenario) -> tuple[Counter[str], Counter[str]]:
    """Return how many incidents each promise about replicas has, at least and at most.

    When one of two brokers is back, states of the first may end before those of the second are seen, or after.
    """
    least, most = Counter[str](), Counter[str]()
    if scenario.patient:
        return least, most
    for step in scenario.steps:
        one = expected_promises(scenario.topics, {step.first.broker})
        least.update(one)
        most.update(one)
        if step.second is not None:
            last = step.first if step.second_is_back_first else step.second
            left = expected_promises(scenario.topics, {last.broker})
            both = expected_promises(scenario.topics, {step.first.broker, step.second.broker})
            least.update(left - one)
            most.update(left | both)
    return least, most
