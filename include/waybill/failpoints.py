"""Named places in the code where the fault tests may kill or freeze a process (tests/faults/).

`reach("ingest.object_created")` does nothing, for the price of one look at an empty dict, unless the environment
variable `WAYBILL_FAILPOINTS` was set when the process began:

    WAYBILL_FAILPOINTS="ingest.object_created=kill@2,ingest.fetched=sleep:1.5"

Each entry is `<name>=<action>[@<n>]`: the action is carried out the n-th time (default: the first) that the process
reaches the place, once. Actions: `kill` (SIGKILL, nothing is cleaned up), `stop` (SIGSTOP, until somebody sends
SIGCONT), `sleep:<seconds>`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from waybill.errors import ConfigError

__all__ = ["FILES", "INGEST", "PARTITION", "RETRY", "SWEEP", "VARIABLE", "arm", "disarm", "reach"]

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
"""The boundaries between the steps of the commit protocol, in the order in which a lane meets them."""

PARTITION = (
    "partition.planned",
    "partition.span_read",
    "partition.file_sent",
    "partition.carried_out",
    "partition.staged",
    "partition.quarantine_committed",
    "partition.committed",
)
"""The boundaries between the steps of a partition run. Those of a span and of a file are met on the executors."""

FILES = ("partition.hour_file_created", "finalize.listed", "finalize.marked")
"""Beside those of a run: after a file of the `files` sink came into being, and within the finalizer."""

RETRY = (
    "retry.rows_read",
    "retry.staged",
    "retry.recorded",
    "retry.committed",
    "retry.rewritten",
    "retry.dropped",
)
"""The boundaries between the steps of a retry of the quarantine. A retry that is cut meets them again."""


SWEEP = (
    "sweep.planned",
    "sweep.run_written",
    "sweep.judged",
    "sweep.carried_out",
    "sweep.staged",
    "sweep.duplicates_committed",
    "sweep.committed",
    "sweep.index_moved",
)
"""The boundaries between the steps of a dedup sweep. The second is met on the executors, as `partition.file_sent`."""


@dataclass(slots=True)
class _Failpoint:
    """What happens at a place, and how many times it is passed before."""

    act: Callable[[], None]
    passes_left: int


_armed: dict[str, _Failpoint] = {}


def reach(name: str) -> None:
    """Say that the code has come to the place of that name."""
    if _armed:
        _fire(name)


def arm(text: str) -> None:
    """Set the failpoints that `text` lists, and no others. Raises `ConfigError` if it cannot be read."""
    disarm()
    for entry in filter(None, text.split(",")):
        name, separator, rest = entry.strip().partition("=")
        action, _, count = rest.partition("@")
        try:
            passes = int(count or 1) - 1
            act = _action(action)
        except (KeyError, ValueError):
            act, passes = _do_nothing, -1
        if not separator or passes < 0:
            raise ConfigError(f"{VARIABLE}: {entry!r} is not <name>=<kill|stop|sleep:seconds>[@<n>]")
        _armed[name] = _Failpoint(act, passes)


def disarm() -> None:
    """Forget all failpoints."""
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


def _action(text: str) -> Callable[[], None]:
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
