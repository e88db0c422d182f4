"""One random history of a stream: what happens, and the check of what readers see after each step.

A history is drawn from its seed. Its acts are partition runs, releases, rejections, compactions, retries of the
quarantine, new messages and changes of the config. Any run or decision may be killed at one of its steps, or frozen
there while other acts happen.

The messages show which config has parsed them: config 1 takes the message id from the field `a` and the event time from
`t1`, config 2 from `b` and `t2`. Some messages have only one of the times, and some are no JSON at all.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from partition_scenes import Scene, in_this_process, new_scene
from pyiceberg.table.snapshots import Snapshot

from waybill.audit import find_audit, find_decision
from waybill.audit.decisions import DecisionKind
from waybill.errors import CommitConflict, DecisionRefused, PublicationHeld, PublicationRejected, WaybillError
from waybill.names import TopicPartition, plans_prefix
from waybill.partition.holds import reject_hold, release_hold
from waybill.partition.plan import Plan
from waybill.partition.run import run_partition
from waybill.quarantine.retry import retry_quarantine
from waybill.quarantine.row_filter import RowFilter
from waybill.records.encode import Record
from waybill.tables.state import PLAN_PROPERTY, ancestry

__all__ = ["Fault", "History", "HistoryResult"]

TP = TopicPartition("flights", 0)
MAX_DEPTH = 2
ACTS = 12

RUN_STEPS = ("planned", "executed", "staged", "quarantine_branched", "branched", "audited", "quarantine_published")
DECISION_STEPS = ("decided", "quarantine_branched", "branched", "audited", "quarantine_published")
EXPECTED_ERRORS = (PublicationHeld, PublicationRejected, DecisionRefused, CommitConflict)


class Killed(BaseException):
    """Ends an act at a step, as a killed process ends."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with what readers see."""

    kind: str
    count: int
    what: str


@dataclass
class HistoryResult:
    """What happened in a history, and what was wrong."""

    seed: int
    happened: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    plans: int = 0
    faults: list[Fault] = field(default_factory=list)


@dataclass(frozen=True)
class _Message:
    """One message of the archive, and under which configs it can be parsed."""

    offset: int
    parsable: frozenset[int]


class History:
    """Plays the history of one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.result = HistoryResult(seed)
        self.version = 1
        self.scene: Scene = new_scene(**_stream(1))
        self.messages: list[_Message] = []
        self.trace: list[str] = []

    def play(self) -> HistoryResult:
        """Play all acts, end every hold, and check that each message is visible exactly once."""
        self._put()
        for _ in range(ACTS):
            self._act(0)
            self._check()
        self._end_holds()
        self._check()
        self._check_complete()
        self.result.messages = len(self.messages)
        return self.result

    # --- acts ---

    def _act(self, depth: int) -> None:
        acts: dict[str, tuple[int, Callable[[int], None]]] = {
            "run": (6, self._run),
            "release": (2, self._release),
            "reject": (2, self._reject),
            "put": (3, lambda _: self._put()),
            "change config": (2, lambda _: self._change_config()),
            "compact": (1, lambda _: self._compact()),
            "retry": (1, lambda _: self._retry()),
        }
        (name,) = self.random.choices(list(acts), [weight for weight, _ in acts.values()])
        self._say(f"{'  ' * depth}{name}")
        acts[name][1](depth)
        self.result.happened[name] += 1

    def _run(self, depth: int) -> None:
        config = self.scene.config
        self._guarded(
            lambda on_step: run_partition(config, "flights", in_this_process, on_step=on_step), RUN_STEPS, depth
        )

    def _release(self, depth: int) -> None:
        config = self.scene.config
        self._guarded(
            lambda on_step: release_hold(config, "flights", by="ann", reason="chaos", on_step=on_step),
            DECISION_STEPS,
            depth,
        )

    def _reject(self, depth: int) -> None:
        config = self.scene.config
        self._guarded(
            lambda on_step: reject_hold(config, "flights", by="bob", reason="chaos", on_step=on_step),
            DECISION_STEPS,
            depth,
        )

    def _guarded(self, act: Callable[[Callable[[str], None]], object], steps: tuple[str, ...], depth: int) -> None:
        """Call `act`, which may be killed or frozen at one of its steps."""
        fate = self.random.choices(["undisturbed", "killed", "frozen"], [4, 3, 3 if depth < MAX_DEPTH else 0])[0]
        at = self.random.choice(steps)

        def on_step(step: str) -> None:
            if step != at or fate == "undisturbed":
                return
            self.result.happened[f"{fate} at {step}"] += 1
            self._say(f"{'  ' * depth}- {fate} at {step}")
            if fate == "killed":
                raise Killed
            for _ in range(self.random.randint(1, 3)):
                self._act(depth + 1)

        try:
            act(on_step)
        except Killed:
            pass
        except EXPECTED_ERRORS as error:
            self.result.happened[type(error).__name__] += 1
            self._say(f"{'  ' * depth}- {type(error).__name__}")

    def _put(self) -> None:
        first = len(self.messages)
        kinds = [self.random.choice([{1, 2}, {1, 2}, {1, 2}, {1}, {2}, {2}, set()]) for _ in range(self._count())]
        new = [_Message(first + n, frozenset(kind)) for n, kind in enumerate(kinds)]
        self.messages += new
        self.scene.put(TP, [_record(message) for message in new])

    def _count(self) -> int:
        return self.random.randint(1, 8)

    def _change_config(self) -> None:
        self.version = 3 - self.version
        self.scene.config = self.scene.with_stream(**_stream(self.version))

    def _compact(self) -> None:
        if self.scene.catalog.table_exists(self.scene.stream.table):
            self.scene.rewrite()

    def _retry(self) -> None:
        try:
            retry_quarantine(self.scene.config, "flights", RowFilter())
        except WaybillError as error:
            self.result.happened[f"retry: {type(error).__name__}"] += 1

    def _end_holds(self) -> None:
        """Run until everything is published; release what is held."""
        for _ in range(2 * len(self.messages) + 10):
            try:
                if run_partition(self.scene.config, "flights", in_this_process).outcome == "nothing_new":
                    return
            except PublicationHeld:
                release_hold(self.scene.config, "flights", by="ann", reason="the end")
            except PublicationRejected:
                continue
        self._fault("stuck", 1, "the last runs did not come to an end")

    # --- what readers see ---

    def _check(self) -> None:
        """Compare what readers see with the published plans, and these with the audits and decisions."""
        if not self.scene.catalog.table_exists(self.scene.stream.table):
            return
        self._check_decisions()
        progress = self._progress()
        rows = self.scene.table.scan(selected_fields=("offset", "message_id")).to_arrow().to_pylist()
        seen = Counter(row["offset"] for row in rows)
        quarantine = self.scene.quarantine.scan(selected_fields=("offset",)).to_arrow()["offset"].to_pylist()
        seen.update(offset for offset in quarantine if offset < progress)
        self._compare("lost", set(range(progress)) - seen.keys())
        self._compare("repeated", {offset for offset, times in seen.items() if times > 1})
        self._compare("not published", {offset for offset in seen if offset >= progress})
        self._check_versions({row["offset"]: row["message_id"] for row in rows}, set(quarantine))

    def _check_versions(self, ids: dict[int, str], quarantine: set[int]) -> None:
        """Each published range shows what the config of its plan makes of its messages; a retry may have moved some."""
        mixed: set[int] = set()
        for first, end, version in self._published_ranges():
            for message in self.messages[first:end]:
                is_row = message.offset in ids
                if version in message.parsable:
                    right = is_row and ids[message.offset] == f"v{version}-{message.offset}"
                else:  # in quarantine, or moved out of it by a retry with the other config
                    right = not is_row or ids[message.offset] == f"v{3 - version}-{message.offset}"
                if not right or (not is_row and message.offset not in quarantine):
                    mixed.add(message.offset)
        self._compare("mixed", mixed)

    def _published_ranges(self) -> list[tuple[int, int, int]]:
        """Return first offset, end and config version of each published plan."""
        ranges = []
        for plan, snapshot in self._published_plans():
            version = 1 if plan.parse_settings.parser.event_time.field == ("t1",) else 2  # type: ignore[union-attr]
            ranges.append((plan.start.get(TP, 0), _progress_of(snapshot), version))
        return ranges

    def _check_decisions(self) -> None:
        for plan, _ in self._published_plans():
            audit = find_audit(self.scene.store, plan.key)
            decision = find_decision(self.scene.store, plan.key)
            if audit is None:
                self._fault("not audited", 1, plan.id)
            elif audit.failed_critical and (decision is None or decision.kind is DecisionKind.REJECTED):
                self._fault("published against a decision", 1, f"{plan.id}: {decision}")

    def _published_plans(self) -> list[tuple[Plan, Snapshot]]:
        metadata = self.scene.table.metadata
        below = plans_prefix(self.scene.store.prefix, "flights", 1, str(metadata.table_uuid))
        found = []
        for snapshot in ancestry(metadata):
            properties: dict[str, Any] = snapshot.summary.additional_properties if snapshot.summary else {}
            if PLAN_PROPERTY in properties:
                key = f"{below}{properties[PLAN_PROPERTY]}.json"
                found.append((Plan.from_json(key, self.scene.store.read(key)), snapshot))
        self.result.plans = len(found)
        return found

    def _progress(self) -> int:
        return max((_progress_of(snapshot) for _, snapshot in self._published_plans()), default=0)

    def _check_complete(self) -> None:
        if self._progress() != len(self.messages):
            self._fault("incomplete", len(self.messages) - self._progress(), f"progress {self._progress()}")
        refs = {*self.scene.table.metadata.refs, *self.scene.quarantine.metadata.refs}
        if refs - {"main"}:
            self._fault("left over", len(refs) - 1, f"branches {refs}")
        missing = self.scene.referenced_files() - self.scene.data_files()
        if missing:
            self._fault("gone", len(missing), min(missing))

    # --- reports ---

    def _compare(self, kind: str, offsets: set[int]) -> None:
        if offsets:
            self._fault(kind, len(offsets), f"offsets {sorted(offsets)[:10]}")

    def _fault(self, kind: str, count: int, what: str) -> None:
        self.result.faults.append(Fault(kind, count, f"{what}; after {len(self.trace)} acts"))

    def _say(self, line: str) -> None:
        self.trace.append(line)


def _stream(version: int) -> dict[str, Any]:
    return {
        "parser": {
            "name": "json",
            "event_time": {"field": f"t{version}", "format": "epoch_ms"},
            "message_id": "a" if version == 1 else "b",
        },
        "quarantine": {"min_messages": 1},
        "quality": {"checks": {"quarantine_share": {"max_share": "40%", "severity": "critical"}}},
    }


def _record(message: _Message) -> Record:
    n = message.offset
    if not message.parsable:
        return Record(n, n, b"key", b"no json")
    value = {"a": f"v1-{n}", "b": f"v2-{n}", **{f"t{version}": n for version in message.parsable}}
    return Record(n, n + 5, b"key", json.dumps(value).encode())


def _progress_of(snapshot: Snapshot) -> int:
    assert snapshot.summary is not None
    offsets = json.loads(snapshot.summary.additional_properties["waybill.progress"])["offsets"]
    return int(offsets.get(str(TP), 0))
