"""A retry of the quarantine is killed or frozen at each of its steps: no row is lost or in both tables."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from driver_processes import RETRY, DriverProcesses, open_driver_processes
from partition_scenes import Scene, event, in_this_process, junk, new_scene
from quarantine_scenes import (
    BROKEN,
    GOOD,
    JUNK,
    MENDED,
    TP0,
    check_done,
    check_sound,
    fill_quarantine,
    retries,
    retry,
    rewrite_quarantine,
)

from devstack import Stack
from waybill.base import failpoints
from waybill.tables.partition.partition_run import run_partition

pytestmark = [pytest.mark.deep, pytest.mark.faults, pytest.mark.integration, pytest.mark.matrix]

IN_THE_TABLE = ("retry.committed", "retry.rewritten", "retry.dropped")
"""Steps after which the rows are in the table."""
RECORDED = ("retry.recorded", "retry.results_stored", *IN_THE_TABLE)
"""Steps after which the next retry finishes this one without parsing messages."""


@pytest.fixture(scope="module")
def processes(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DriverProcesses]:
    """Processes that run a retry, with the stack's connections."""
    del stack
    with open_driver_processes(tmp_path_factory.mktemp("retries"), RETRY) as opened:
        yield opened


@pytest.fixture
def scene(stack: Stack) -> Iterator[Scene]:
    """A scene with all messages but a tombstone in quarantine, and a parser that can read most of them."""
    del stack
    made = new_scene()
    fill_quarantine(made)
    yield made
    made.store.close()
    made.catalog.close()


@pytest.mark.parametrize("failpoint", failpoints.RETRY)
def test_the_next_retry_finishes_a_killed_one(scene: Scene, processes: DriverProcesses, failpoint: str) -> None:
    assert processes.run(scene.config, f"{failpoint}=kill") == -signal.SIGKILL
    check_sound(scene, JUNK if failpoint in IN_THE_TABLE else GOOD + JUNK)
    # The next retry has another parser, and the archive has more messages.
    scene.config = scene.with_stream(parser=BROKEN)
    scene.put(TP0, [event(54, 0)])
    scene.run()
    assert processes.run(scene.config) == 0
    left = JUNK + 1 if failpoint in RECORDED else GOOD + JUNK + 1
    check_done(scene, left, left_over=True)
    scene.config = scene.with_stream(parser=MENDED)
    assert processes.run(scene.config) == 0
    check_done(scene, JUNK, left_over=True)


@pytest.mark.parametrize("second", failpoints.RETRY[failpoints.RETRY.index("retry.results_stored") :])
def test_a_third_retry_finishes_after_two_were_killed(scene: Scene, processes: DriverProcesses, second: str) -> None:
    assert processes.run(scene.config, "retry.recorded=kill") == -signal.SIGKILL
    assert processes.run(scene.config, f"{second}=kill") == -signal.SIGKILL
    check_sound(scene, JUNK if second in IN_THE_TABLE else GOOD + JUNK)
    assert processes.run(scene.config) == 0
    check_done(scene, JUNK, left_over=True)
    assert retries(scene) == (1, 1)


@pytest.mark.parametrize("failpoint", failpoints.RETRY)
def test_a_retry_that_is_frozen_until_others_finished_changes_nothing(
    scene: Scene, processes: DriverProcesses, failpoint: str
) -> None:
    frozen = processes.start(scene.config, f"{failpoint}=stop")
    assert processes.wait(frozen) == -signal.SIGSTOP
    assert processes.run(scene.config) == 0
    scene.put(TP0, [event(54, 0), junk(55)])
    scene.run()
    scene.rewrite()
    rewrite_quarantine(scene)
    retry(scene)
    check_done(scene, JUNK + 1, left_over=True)
    os.kill(frozen, signal.SIGCONT)
    assert processes.wait(frozen) == 0
    check_done(scene, JUNK + 1, left_over=True)
    scene.put(TP0, [event(56, 0)])
    scene.run()
    retry(scene)
    check_done(scene, JUNK + 1, left_over=True)


def test_three_concurrent_retries_with_one_killed_move_each_row_once(scene: Scene, processes: DriverProcesses) -> None:
    together = "retry.staged=sleep:1"
    armed = [together, f"{together},retry.committed=kill", together]
    started = [processes.start(scene.config, each) for each in armed]
    ends = [processes.wait(process) for process in started]
    assert set(ends) <= {0, -signal.SIGKILL}
    check_sound(scene, JUNK)
    assert processes.run(scene.config) == 0
    check_done(scene, JUNK, left_over=True)


@pytest.mark.parametrize("failpoint", ["retry.recorded", "retry.committed", "retry.rewritten"])
def test_a_retry_is_killed_between_the_two_commits_of_a_partition_run(
    scene: Scene, processes: DriverProcesses, failpoint: str
) -> None:
    scene.put(TP0, [event(54, 0), junk(55)])

    def kill(step: str) -> None:
        if step == "quarantine_published":
            assert processes.run(scene.config, f"{failpoint}=kill") == -signal.SIGKILL

    run_partition(scene.config, "flights", in_this_process, on_step=kill)
    check_sound(scene, JUNK + 1 if failpoint in IN_THE_TABLE else GOOD + JUNK + 1)
    assert processes.run(scene.config) == 0
    check_done(scene, JUNK + 1, left_over=True)
