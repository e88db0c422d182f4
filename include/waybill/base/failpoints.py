"""Named places in the code where the fault tests may kill or freeze a process (tests/faults/).

`reach("ingest.object_created")` does nothing and costs one lookup in an empty dict, unless the environment variable
`WAYBILL_FAILPOINTS` was set when the process started:

    WAYBILL_FAILPOINTS="ingest.object_created=kill@2,ingest.fetched=sleep:1.5"

Each entry is `<name>=<action>[@<n>]`: the action runs once, when the process reaches the place for the n-th time
(default: the first). Actions: `kill` (SIGKILL, without any cleanup), `stop` (SIGSTOP, until another process sends
SIGCONT), `sleep:<seconds>`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from waybill.base.errors import ConfigError

VARIABLE = "WAYBILL_FAILPOINTS"

INGEST = (
    "ingest.locked",
    "ingest.committed_read",
    "ingest.log_checked",
    "ingest.fetched",
    "ingest.object_cut",
    "ingest.object_created",
    "ingest.object_refused",
    "ingest.object_inspected",
    "ingest.offset_committed",
)
"""The boundaries between the steps of the commit protocol, in the order in which a lane reaches them."""

SLOTS = ("slots.before_origin", "slots.origin_recorded", "slots.shard_assigned", "slots.assigned", "slots.copied")
"""The boundaries between the steps of a plan that assigns shards of a Kinesis stream to slots."""

PARTITION = (
    "partition.planned",
    "partition.span_read",
    "partition.file_sent",
    "partition.executed",
    "partition.staged",
    "partition.quarantine_branched",
    "partition.branched",
    "partition.audited",
    "partition.quarantine_published",
    "partition.committed",
)
"""The boundaries between the steps of a partition run. Executors reach `span_read` and `file_sent`."""

DECISION = (
    "decision.found",
    "decision.decided",
    "decision.quarantine_branched",
    "decision.branched",
    "decision.audited",
    "decision.quarantine_published",
    "decision.done",
)
"""The boundaries between the steps of a decision about a held run. A rejection reaches the first two and the last."""

FILES = ("partition.hour_file_created", "finalize.listed", "finalize.marked")
"""Additional places of the `files` sink: after the create of a file, and within the finalizer."""

RETRY = (
    "retry.rows_read",
    "retry.staged",
    "retry.audited",
    "retry.recorded",
    "retry.results_stored",
    "retry.committed",
    "retry.rewritten",
    "retry.dropped",
)
"""The boundaries between the steps of a quarantine retry. A retry that was interrupted reaches them again."""

BACKFILL = (
    "backfill.requested",
    "backfill.archived",
    "backfill.partitioned",
    "backfill.task_written",
    "backfill.task_recorded",
    "backfill.cut_written",
    "backfill.cut_recorded",
    "backfill.quarantine_branched",
    "backfill.branched",
    "backfill.built",
    "backfill.audited",
    "backfill.compared",
    "backfill.diffed",
    "backfill.claimed",
    "backfill.decided",
    "backfill.quarantine_moved",
    "backfill.moved",
)
"""The boundaries between the steps of a backfill: building it, then promoting, undoing or cancelling it. Executors
reach the failpoints of tasks and cuts, and `compared`."""

REPLAY = (
    "replay.claimed",
    "replay.planned",
    "replay.delivered",
    "replay.seen_stored",
    "replay.cursor_stored",
    "replay.finished",
)
"""The boundaries between the steps of a worker that serves a replay request."""

INDEX = ("index.written", "index.replaced")
"""The boundaries between the steps of extending the replay index."""

SWEEP = (
    "sweep.planned",
    "sweep.run_written",
    "sweep.matched",
    "sweep.executed",
    "sweep.staged",
    "sweep.duplicates_committed",
    "sweep.committed",
    "sweep.index_saved",
    "sweep.rebuild_started",
    "sweep.unique_published",
    "sweep.published",
)
"""The boundaries between the steps of a sweep. Executors reach `run_written` (and `partition.file_sent`)."""


RESTORE = (
    "restore.planned",
    "restore.target_changed",
    "restore.position_read",
    "restore.sent",
    "restore.acknowledged",
    "restore.mapped",
    "restore.produced",
    "restore.groups_committed",
    "restore.target_changed_back",
)
"""The boundaries between the steps of a restore."""

REPUBLISH = ("republish.recorded", "republish.delivered")
"""The boundaries between the steps with which `waybill kafka republish` publishes lost messages."""

TOPICS = ("topics.throttled", "topics.reassigned", "topics.copied", "topics.changed")
"""The boundaries between the steps with which `waybill kafka apply` copies replicas, and after each other step."""


@dataclass(slots=True)
class _Failpoint:
    """An action, and how many times the process passes the place before the action runs."""

    act: Callable[[], None]
    passes_left: int


_armed: dict[str, _Failpoint] = {}


def reach(name: str) -> None:
    """Run the action that is armed for the place of that name, if any."""
    if _armed:
        _fire(name)


def arm(text: str) -> None:
    """Arm the failpoints that `text` lists, and disarm all others. Raises `ConfigError` if it cannot be parsed."""
    disarm()
    for entry in filter(None, text.split(",")):
        name, separator, rest = entry.strip().partition("=")
        action, _, count = rest.partition("@")
        try:
            passes = int(count or 1) - 1
            act = _parse_action(action)
        except (KeyError, ValueError):
            act, passes = _do_nothing, -1
        if not separator or passes < 0:
            raise ConfigError(f"{VARIABLE}: {entry!r} is not <name>=<kill|stop|sleep:seconds>[@<n>]")
        _armed[name] = _Failpoint(act, passes)


def disarm() -> None:
    """Disarm all failpoints."""
    _armed.clear()


def _fire(name: str) -> None:
    point = _armed.get(name)
    if point is None:
        return
    if point.passes_left:
        point.passes_left -= 1
        return
    del _armed[name]
    point.act()


def _parse_action(text: str) -> Callable[[], None]:
    kind, separator, argument = text.partition(":")
    if kind == "sleep" and separator:
        seconds = float(argument)
        return lambda: time.sleep(seconds)
    number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[text]
    return lambda: os.kill(os.getpid(), number)


def _do_nothing() -> None:
    pass


def _arm_from(environment: Mapping[str, str]) -> None:
    if environment.get(VARIABLE):
        arm(environment[VARIABLE])


_arm_from(os.environ)
