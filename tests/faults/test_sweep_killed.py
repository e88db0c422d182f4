"""A dedup sweep dies by SIGKILL, or is frozen, at each of its steps: its rows are swept once, as the oracle says."""

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
from waybill import failpoints
from waybill.names import TopicPartition

pytestmark = [pytest.mark.faults, pytest.mark.integration]

WINDOW_MS = 3_600_000
STEPS = (*failpoints.SWEEP, "partition.file_sent")
A, B = TopicPartition("flights", 0), TopicPartition("flights", 1)
NOT_FROZEN = ("sweep.run_written", "sweep.index_moved")
"""On an executor, and at the very end: nothing is left to be done wrong by who wakes up there."""
COMMITTED = ("sweep.committed", "sweep.index_moved")


@pytest.fixture(scope="module")
def processes(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DriverProcesses]:
    """Processes that sweep, with the stack's connections."""
    del stack
    with open_driver_processes(tmp_path_factory.mktemp("sweeps"), SWEEP) as opened:
        yield opened


@pytest.fixture
def swept(stack: Stack) -> Iterator[SweptScene]:
    """One sweep is done, and its rows come again in the next."""
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


def go_on(swept: SweptScene) -> None:
    """What a driver that died has planned, then what came since."""
    swept.count()
    swept.planned_elsewhere()
    swept.count()


@pytest.mark.parametrize("step", STEPS)
def test_a_sweep_that_is_killed_is_made_good_by_the_next(
    swept: SweptScene, processes: DriverProcesses, step: str
) -> None:
    swept.planned_elsewhere()
    assert processes.run(swept.scene.config, f"{step}=kill") == -signal.SIGKILL
    unique, expected = swept.found()[0], swept.expected()[0]
    assert (unique == expected) == (step not in COMMITTED), "nothing, or everything"
    assert len(unique) in (len(expected), len(expected) + 5)
    swept.append([row(A, offset, f"id-{offset - 5}") for offset in range(10, 20)])
    compact(swept.main)
    compact(swept.tables.unique)
    assert processes.run(swept.scene.config) == 0
    go_on(swept)
    swept.check()


@pytest.mark.parametrize("second", failpoints.SWEEP[5:7])
def test_one_that_makes_good_another_is_killed_as_well(
    swept: SweptScene, processes: DriverProcesses, second: str
) -> None:
    swept.planned_elsewhere()
    assert processes.run(swept.scene.config, "sweep.staged=kill") == -signal.SIGKILL
    assert processes.run(swept.scene.config, f"{second}=kill") == -signal.SIGKILL
    assert processes.run(swept.scene.config) == 0
    swept.count()
    swept.check()


@pytest.mark.parametrize("step", [step for step in failpoints.SWEEP if step not in NOT_FROZEN])
def test_one_that_is_frozen_while_others_do_it_all_changes_nothing(
    swept: SweptScene, processes: DriverProcesses, step: str
) -> None:
    swept.planned_elsewhere()
    frozen = processes.start(swept.scene.config, f"{step}=stop")
    assert processes.wait(frozen) == -signal.SIGSTOP
    assert processes.run(swept.scene.config) == 0
    swept.count()
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


def test_three_sweeps_at_once_one_of_them_killed(swept: SweptScene, processes: DriverProcesses) -> None:
    together = "sweep.carried_out=sleep:1"
    armed = [together, f"{together},sweep.duplicates_committed=kill", together]
    swept.planned_elsewhere()
    started = [processes.start(swept.scene.config, each) for each in armed]
    ends = [processes.wait(process) for process in started]
    assert set(ends) <= {0, -signal.SIGKILL}
    assert processes.run(swept.scene.config) == 0
    swept.count()
    swept.check()
