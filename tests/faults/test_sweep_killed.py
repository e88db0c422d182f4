"""A dedup sweep is killed or frozen at each of its steps: the tables equal those of the oracle afterwards."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from driver_processes import SWEEP, DriverProcesses, open_driver_processes
from oracle import Row
from partition_scenes import new_scene
from sweep_scenes import START_MS, SweptScene, compact

from devstack import Stack
from waybill.base import failpoints
from waybill.config.names import TopicPartition

pytestmark = [pytest.mark.deep, pytest.mark.faults, pytest.mark.integration, pytest.mark.matrix]

WINDOW_MS = 3_600_000
OF_REBUILDS = {"sweep.rebuild_started", "sweep.unique_published", "sweep.published"}
"""Steps that only the rebuild of a unique table reaches: tests/integration/test_rebuild.py."""
STEPS = (*(step for step in failpoints.SWEEP if step not in OF_REBUILDS), "partition.file_sent")
A, B = TopicPartition("flights", 0), TopicPartition("flights", 1)
NOT_FROZEN = {"sweep.run_written", "sweep.index_saved"}
"""Steps on an executor and at the end: a sweep that wakes up there has no work left that could be wrong."""
COMMITTED = ("sweep.committed", "sweep.index_saved")


@pytest.fixture(scope="module")
def processes(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DriverProcesses]:
    """Start processes that sweep, with the stack's connections."""
    del stack
    with open_driver_processes(tmp_path_factory.mktemp("sweeps"), SWEEP) as opened:
        yield opened


@pytest.fixture
def swept(stack: Stack) -> Iterator[SweptScene]:
    """A stream with one finished sweep, whose messages are repeated in the next."""
    del stack
    scene = new_scene(dedup={"window": "1h", "floor": "1s", "buckets": 2})
    made = SweptScene(scene, ("message_id",), WINDOW_MS)
    made.append([row(A, offset, f"id-{offset}") for offset in range(10)])
    made.sweep()
    made.append([row(B, offset, f"id-{2 * offset}") for offset in range(10)], files=2)
    yield made
    scene.store.close()
    scene.catalog.close()


def row(tp: TopicPartition, offset: int, key: str) -> Row:
    return Row(tp, offset, START_MS - 60_000 + offset, START_MS, (key,))


def sweep_by_oracle(swept: SweptScene) -> None:
    """Run the oracle's sweeps of the killed driver's plan, then of the rows appended since."""
    swept.sweep_by_oracle()
    swept.take_plan_of_other_process()
    swept.sweep_by_oracle()


@pytest.mark.parametrize("step", STEPS)
def test_sweep_after_a_kill_matches_the_oracle(swept: SweptScene, processes: DriverProcesses, step: str) -> None:
    swept.take_plan_of_other_process()
    assert processes.run(swept.scene.config, f"{step}=kill") == -signal.SIGKILL
    unique, expected = swept.found()[0], swept.expected()[0]
    assert (unique == expected) == (step not in COMMITTED), "all rows of the sweep are committed, or none"
    assert len(unique) in (len(expected), len(expected) + 5)
    swept.append([row(A, offset, f"id-{offset - 5}") for offset in range(10, 20)])
    compact(swept.main)
    compact(swept.tables.unique)
    assert processes.run(swept.scene.config) == 0
    sweep_by_oracle(swept)
    swept.check()


@pytest.mark.parametrize("second", failpoints.SWEEP[5:7])
def test_sweep_after_two_kills_matches_the_oracle(swept: SweptScene, processes: DriverProcesses, second: str) -> None:
    swept.take_plan_of_other_process()
    assert processes.run(swept.scene.config, "sweep.staged=kill") == -signal.SIGKILL
    assert processes.run(swept.scene.config, f"{second}=kill") == -signal.SIGKILL
    assert processes.run(swept.scene.config) == 0
    swept.sweep_by_oracle()
    swept.check()


@pytest.mark.parametrize("step", [step for step in failpoints.SWEEP if step not in OF_REBUILDS | NOT_FROZEN])
def test_frozen_sweep_changes_nothing_after_others_have_committed(
    swept: SweptScene, processes: DriverProcesses, step: str
) -> None:
    swept.take_plan_of_other_process()
    frozen = processes.start(swept.scene.config, f"{step}=stop")
    assert processes.wait(frozen) == -signal.SIGSTOP
    assert processes.run(swept.scene.config) == 0
    swept.sweep_by_oracle()
    swept.append([row(A, offset, f"id-{offset - 5}") for offset in range(10, 20)])
    compact(swept.main)
    swept.sweep()
    compact(swept.tables.unique)
    swept.check()
    os.kill(frozen, signal.SIGCONT)
    assert processes.wait(frozen) == 0
    swept.check()
    swept.append([row(B, offset, f"id-{offset}") for offset in range(10, 30)])
    swept.sweep()
    swept.check()


def test_three_concurrent_sweeps_one_killed_match_the_oracle(swept: SweptScene, processes: DriverProcesses) -> None:
    together = "sweep.executed=sleep:1"
    armed = [together, f"{together},sweep.duplicates_committed=kill", together]
    swept.take_plan_of_other_process()
    started = [processes.start(swept.scene.config, each) for each in armed]
    ends = [processes.wait(process) for process in started]
    assert set(ends) <= {0, -signal.SIGKILL}
    assert processes.run(swept.scene.config) == 0
    swept.sweep_by_oracle()
    swept.check()
