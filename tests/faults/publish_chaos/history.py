"""One random history of a stream: what happens, and the check of what readers see after each step.

A history is drawn from its seed. Its acts are partition runs, releases, rejections, compactions, retries of the
quarantine, new messages, changes of the config, and backfills of a random range that are built, promoted, undone and
cancelled. Any run, decision or step of a backfill may be killed at one of its steps, or frozen there while other acts
happen.

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

from publish_chaos.backfills import BUILD_STEPS, CHANGE_STEPS, Backfills, version_of
from waybill.base.errors import (
    BackfillRefused,
    BackfillUnderWay,
    CommitConflict,
    DecisionRefused,
    PublicationHeld,
    PublicationRejected,
    WaybillError,
)
from waybill.config.names import TopicPartition, plans_prefix
from waybill.records.batches.encode import Record
from waybill.tables.audit import find_audit, find_decision
from waybill.tables.audit.decisions import DecisionKind
from waybill.tables.backfill.states import BackfillAction
from waybill.tables.iceberg.state import BACKFILL_PROPERTY, PLAN_PROPERTY, RETRIES_PROPERTY, ancestry
from waybill.tables.partition.holds import decide_hold
from waybill.tables.partition.partition_plan import Plan
from waybill.tables.partition.partition_run import run_partition
from waybill.tables.quarantine.retry import retry_quarantine
from waybill.tables.quarantine.row_filter import RowFilter

TP = TopicPartition("flights", 0)
MAX_DEPTH = 2
ACTS = 12

RUN_STEPS = ("planned", "executed", "staged", "quarantine_branched", "branched", "audited", "quarantine_published")
DECISION_STEPS = ("decided", "quarantine_branched", "branched", "audited", "quarantine_published")
EXPECTED_ERRORS = (
    PublicationHeld,
    PublicationRejected,
    DecisionRefused,
    CommitConflict,
    BackfillRefused,
    BackfillUnderWay,
)


class Killed(BaseException):
    """Ends an act at a step, as a killed process ends."""


@dataclass(frozen=True)
class Fault:
    """A fault in the rows that readers see."""

    kind: str
    count: int
    what: str


@dataclass
class HistoryResult:
    """The events of a history, and its faults."""

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
        self.backfills = Backfills(self.scene, self.random, TP)
        self.trace: list[str] = []

    def play(self) -> HistoryResult:
        """Play all acts, end every hold, and check that each message is visible exactly once."""
        try:
            self._play()
        except WaybillError as error:  # one that no act may end with
            self._fault("error", 1, f"{type(error).__name__}: {error}")
        self.result.messages = len(self.messages)
        return self.result

    def _play(self) -> None:
        self._put()
        for _ in range(ACTS):
            self._act(0)
            self._check()
        self._end_holds()
        self.backfills.end_all(self.scene.config)
        self._check()
        self._check_complete()

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
            "backfill": (3, self._backfill),
            "promote": (3, lambda depth: self._change_backfill(BackfillAction.PROMOTE, depth)),
            "undo": (2, lambda depth: self._change_backfill(BackfillAction.UNDO, depth)),
            "cancel": (1, lambda depth: self._change_backfill(BackfillAction.CANCEL, depth)),
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
        self._decide(DecisionKind.RELEASED, "ann", depth)

    def _reject(self, depth: int) -> None:
        self._decide(DecisionKind.REJECTED, "bob", depth)

    def _decide(self, kind: DecisionKind, by: str, depth: int) -> None:
        config = self.scene.config
        self._guarded(
            lambda on_step: decide_hold(config, "flights", kind, by=by, reason="chaos", on_step=on_step),
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

    def _backfill(self, depth: int) -> None:
        """Request a backfill and build it, or build one again that was killed."""
        config = self.scene.config
        exists = self.scene.catalog.table_exists(self.scene.stream.table)
        progress = self._progress() if exists else 0
        backfill = self.backfills.pick() if self.random.random() < 0.2 or not progress else None
        if backfill is None and progress:
            backfill = self.backfills.request(config, progress)
        if backfill is not None:
            wanted = backfill
            self._guarded(lambda on_step: self.backfills.build(config, wanted, on_step), BUILD_STEPS, depth)

    def _change_backfill(self, action: BackfillAction, depth: int) -> None:
        config, backfill = self.scene.config, self.backfills.pick()
        if backfill is not None:
            self._guarded(lambda on_step: self.backfills.change(config, backfill, action, on_step), CHANGE_STEPS, depth)

    def _end_holds(self) -> None:
        """Run until everything is published; release what is held."""
        for _ in range(2 * len(self.messages) + 10):
            try:
                if run_partition(self.scene.config, "flights", in_this_process).outcome == "nothing_new":
                    return
            except PublicationHeld:
                decide_hold(self.scene.config, "flights", DecisionKind.RELEASED, by="ann", reason="the end")
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
        # Between the two commits of a backfill's change, readers know its range in the quarantine only from before.
        half_moved = self.backfills.half_moved()
        self._compare("repeated", {offset for offset, times in seen.items() if times > 1})
        seen.update(offset for offset in quarantine if offset < progress)
        self._compare("lost", set(range(progress)) - seen.keys() - half_moved)
        self._compare("repeated", {offset for offset, times in seen.items() if times > 1} - half_moved)
        self._compare("not published", {offset for offset in seen if offset >= progress})
        self._check_versions({row["offset"]: row["message_id"] for row in rows}, {*quarantine, *half_moved})

    def _check_versions(self, ids: dict[int, str], quarantine: set[int]) -> None:
        """Check that each offset has the result of the expected config; a retry may have moved some messages."""
        mixed: set[int] = set()
        for offset, version in self._versions().items():
            message = self.messages[offset]
            is_row = offset in ids
            if version in message.parsable:
                right = is_row and ids[offset] == f"v{version}-{offset}"
            else:  # in quarantine, or moved out of it by a retry with the other config
                right = not is_row or ids[offset] == f"v{3 - version}-{offset}"
            if not right or (not is_row and offset not in quarantine):
                mixed.add(offset)
        self._compare("mixed", mixed)

    def _versions(self) -> dict[int, int]:
        """Return which config has made the rows of each published offset: that of its plan, or of a backfill."""
        versions: dict[int, int] = {}
        before: dict[str, dict[int, int]] = {}
        changes: list[tuple[int, str, str]] = []
        plans = {snapshot.snapshot_id: plan for plan, snapshot in self._published_plans()}
        for snapshot in reversed(list(ancestry(self.scene.table.metadata))):
            properties: dict[str, Any] = snapshot.summary.additional_properties if snapshot.summary else {}
            plan = plans.get(snapshot.snapshot_id)
            if plan is not None:
                offsets = range(plan.start.get(TP, 0), _progress_of(snapshot))
                versions.update(dict.fromkeys(offsets, version_of(plan.parse_settings)))
            elif BACKFILL_PROPERTY in properties:
                number = int(properties[RETRIES_PROPERTY]) - 1
                changes.append((number, properties[BACKFILL_PROPERTY], properties["waybill.backfill.action"]))
                self.backfills.apply(properties, versions, before)
        decided = self.backfills.decided()
        if changes != decided:  # one was done twice, not at all, or by a process that had been overtaken
            self._fault("not as decided", 1, f"main has {changes}, decided was {decided}")
        return versions

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
        left = refs - {"main"} - self.backfills.tags()
        if left:
            self._fault("left over", len(left), f"branches {left}")
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
