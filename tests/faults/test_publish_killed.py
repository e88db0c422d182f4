"""Holds, decisions and backfills are killed or frozen at each step: readers see exactly what was decided.

Each act is a process of its own, which gets a SIGKILL at a step, or is frozen there by a SIGSTOP until rivals have
finished and the stream has gone on. The oracle of `backfill_scenes` knows for each message which parser made its row.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest
from backfill_scenes import (
    FIRST,
    SECOND,
    TP0,
    TP1,
    Key,
    all_first,
    build,
    check,
    files_of_all_snapshots,
    promote,
    put,
    request,
    seen,
    small_tasks,
    undo,
    use,
    with_second,
)
from driver_processes import PUBLISH, DriverProcesses, open_driver_processes
from partition_scenes import Scene, mostly_deep, new_scene
from quarantine_scenes import verified

from devstack import Stack
from waybill.base import failpoints

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.matrix]

DONE, HELD, REFUSED, KILLED = 0, 3, 4, -signal.SIGKILL
CRITICAL = {"checks": {"quarantine_share": {"severity": "critical", "max_share": "1%"}}}
FIRST_END, END = 12, 21
"""Offsets of the published run, and of the one that is held."""

RUN_STEPS = failpoints.PARTITION[: failpoints.PARTITION.index("partition.audited") + 1]
"""The steps of a run that is held."""
REJECTION_STEPS = ("decision.found", "decision.decided", "decision.done")
RANGE = ("flights/0@5-16", "flights/1@104-")
SPANS = [(TP0, 5, 17), (TP1, 104, 110)]
CUTS = ("backfill.cut_written", "backfill.cut_recorded")
CHANGE_STEPS = failpoints.BACKFILL[failpoints.BACKFILL.index("backfill.claimed") :]
BUILD_STEPS = tuple(
    step
    for step in failpoints.BACKFILL
    # A build of a range of a table that has its rows archives and partitions nothing; it was requested before.
    if step not in (*CHANGE_STEPS, "backfill.requested", "backfill.archived", "backfill.partitioned")
)


@pytest.fixture(scope="module")
def processes(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DriverProcesses]:
    """Processes that run, decide and backfill, with the stack's connections."""
    del stack
    with open_driver_processes(tmp_path_factory.mktemp("publishing"), PUBLISH) as opened:
        yield opened


@pytest.fixture
def make_scene(stack: Stack) -> Iterator[Callable[..., Scene]]:
    del stack
    made: list[Scene] = []

    def make(**stream: object) -> Scene:
        made.append(new_scene(**stream))
        return made[-1]

    yield make
    for scene in made:
        scene.store.close()
        scene.catalog.close()


@pytest.fixture
def scene(make_scene: Callable[..., Scene]) -> Scene:
    """A table with a published run, and messages whose run will be held."""
    made = make_scene(parser=FIRST, quarantine={"min_messages": 1})
    put(made, TP0, 0, FIRST_END)
    made.run()
    made.config = made.with_stream(quality=CRITICAL)
    put(made, TP0, FIRST_END, END)
    return made


@pytest.fixture
def held(scene: Scene, processes: DriverProcesses) -> Scene:
    """The scene with the hold."""
    assert processes.run(scene.config, "", "run") == HELD
    check_waiting(scene)
    return scene


@pytest.fixture
def filled(make_scene: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A table that the first parser filled, in two runs; the second parser is configured now. Backfills have tasks."""
    small_tasks(monkeypatch)
    made = make_scene(parser=FIRST)
    put(made, TP0, 0, 12)
    put(made, TP1, 100, 107)
    made.run()
    put(made, TP0, 12, 21)
    put(made, TP1, 107, 110)
    made.run()
    use(made, SECOND)
    return made


def check_sound(scene: Scene) -> None:
    assert [str(fault) for fault in verified(scene).faults if fault.kind != "committed"] == []


def check_waiting(scene: Scene) -> None:
    """Assert that readers of the table see the published run and nothing of the other one.

    The quarantine may have rows of the other one, which readers leave out, as `verify` does.
    """
    rows, quarantine = seen(scene)
    assert {offset for _, offset in rows} == {offset for offset in range(FIRST_END) if offset % 7}
    assert {offset for _, offset in quarantine if offset < FIRST_END} == {0, 7}
    check_sound(scene)


def correct(scene: Scene) -> None:
    """Configure the parser that is right, without a check."""
    scene.config = scene.with_stream(parser=SECOND, quality={})


def first_and(scene: Scene, parser: str) -> dict[Key, str]:
    """Return the expectation that `parser` made the rows of the run that was held."""
    return all_first(scene) | {(TP0, offset): parser for offset in range(FIRST_END, END)}


def go_on(scene: Scene, expected: dict[Key, str], parser: str) -> None:
    """Let the stream go on: new messages, a run without checks, a compaction."""
    scene.config = scene.with_stream(quality={})
    end = max(offset for tp, offset in expected if tp == TP0) + 1
    put(scene, TP0, end, end + 8)
    scene.run()
    scene.rewrite()
    expected |= {(TP0, offset): parser for offset in range(end, end + 8)}


# --- a run that is held -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", mostly_deep(RUN_STEPS))
def test_a_killed_run_is_held_by_the_next_one(scene: Scene, processes: DriverProcesses, step: str) -> None:
    assert processes.run(scene.config, f"{step}=kill", "run") == KILLED
    check_waiting(scene)
    assert processes.run(scene.config, "", "run") == HELD
    check_waiting(scene)
    assert processes.run(scene.config, "", "release") == DONE
    check(scene, all_first(scene))


@pytest.mark.parametrize("step", mostly_deep(RUN_STEPS))
def test_a_run_that_is_frozen_until_its_plan_was_rejected_publishes_nothing(
    scene: Scene, processes: DriverProcesses, step: str
) -> None:
    frozen = processes.start(scene.config, f"{step}=stop", "run")
    assert processes.wait(frozen) == -signal.SIGSTOP
    assert processes.run(scene.config, "", "run") == HELD
    assert processes.run(scene.config, "", "reject") == DONE
    correct(scene)
    assert processes.run(scene.config, "", "run") == DONE
    expected = first_and(scene, "second")
    check(scene, expected)
    go_on(scene, expected, "second")
    os.kill(frozen, signal.SIGCONT)
    assert processes.wait(frozen) in (DONE, REFUSED)
    check(scene, expected)
    go_on(scene, expected, "second")
    check(scene, expected)


@pytest.mark.deep
@pytest.mark.parametrize("step", RUN_STEPS)
def test_a_run_that_is_frozen_until_its_plan_was_released_adopts_it(
    scene: Scene, processes: DriverProcesses, step: str
) -> None:
    frozen = processes.start(scene.config, f"{step}=stop", "run")
    assert processes.wait(frozen) == -signal.SIGSTOP
    assert processes.run(scene.config, "", "run") == HELD
    assert processes.run(scene.config, "", "release") == DONE
    expected = all_first(scene)
    go_on(scene, expected, "first")
    os.kill(frozen, signal.SIGCONT)
    assert processes.wait(frozen) == DONE
    check(scene, expected)


# --- decisions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", mostly_deep(failpoints.DECISION, "decision.quarantine_published"))
def test_a_killed_release_is_finished_by_the_same_command(held: Scene, processes: DriverProcesses, step: str) -> None:
    assert processes.run(held.config, f"{step}=kill", "release") == KILLED
    if step == "decision.done":
        assert processes.run(held.config, "", "release") == REFUSED, "nothing is held any more"
    else:
        check_waiting(held)
        assert processes.run(held.config, "", "release") == DONE
    expected = all_first(held)
    check(held, expected)
    go_on(held, expected, "first")
    check(held, expected)


@pytest.mark.deep
@pytest.mark.parametrize("step", REJECTION_STEPS)
def test_a_killed_rejection_is_finished_by_the_same_command_or_the_next_run(
    held: Scene, processes: DriverProcesses, step: str
) -> None:
    assert processes.run(held.config, f"{step}=kill", "reject") == KILLED
    check_waiting(held)
    again = processes.run(held.config, "", "reject")
    assert again == (DONE if step == "decision.found" else REFUSED), "what was decided is held no more"
    correct(held)
    assert processes.run(held.config, "", "run") == DONE
    check(held, first_and(held, "second"))
    assert {*held.table.metadata.refs, *held.quarantine.metadata.refs} == {"main"}


@pytest.mark.deep
@pytest.mark.parametrize("step", mostly_deep(failpoints.DECISION, "decision.decided"))
def test_a_release_that_is_frozen_until_another_has_ended_changes_nothing(
    held: Scene, processes: DriverProcesses, step: str
) -> None:
    frozen = processes.start(held.config, f"{step}=stop", "release")
    assert processes.wait(frozen) == -signal.SIGSTOP
    assert processes.run(held.config, "", "release") == (REFUSED if step == "decision.done" else DONE)
    expected = all_first(held)
    check(held, expected)
    go_on(held, expected, "first")
    os.kill(frozen, signal.SIGCONT)
    assert processes.wait(frozen) == DONE
    check(held, expected)


@pytest.mark.deep
@pytest.mark.parametrize("step", REJECTION_STEPS)
def test_a_rejection_that_is_frozen_until_the_messages_were_parsed_again_changes_nothing(
    held: Scene, processes: DriverProcesses, step: str
) -> None:
    frozen = processes.start(held.config, f"{step}=stop", "reject")
    assert processes.wait(frozen) == -signal.SIGSTOP
    if step == "decision.found":
        assert processes.run(held.config, "", "reject") == DONE
    correct(held)
    assert processes.run(held.config, "", "run") == DONE
    expected = first_and(held, "second")
    go_on(held, expected, "second")
    os.kill(frozen, signal.SIGCONT)
    assert processes.wait(frozen) == DONE
    check(held, expected)


@pytest.mark.deep
@pytest.mark.parametrize(("frozen_act", "rival"), [("release", "reject"), ("reject", "release")])
def test_of_two_opposite_decisions_the_second_is_refused(
    held: Scene, processes: DriverProcesses, frozen_act: str, rival: str
) -> None:
    frozen = processes.start(held.config, "decision.found=stop", frozen_act)
    assert processes.wait(frozen) == -signal.SIGSTOP
    assert processes.run(held.config, "", rival) == DONE
    correct(held)
    processes.run(held.config, "", "run")
    expected = first_and(held, "second" if rival == "reject" else "first")
    check(held, expected)
    os.kill(frozen, signal.SIGCONT)
    assert processes.wait(frozen) == REFUSED
    check(held, expected)


# --- backfills --------------------------------------------------------------------------------------------------------


@pytest.mark.deep
@pytest.mark.parametrize("step", BUILD_STEPS)
def test_a_killed_build_is_continued(filled: Scene, processes: DriverProcesses, step: str) -> None:
    before = all_first(filled)
    backfill = request(filled, *RANGE)
    assert processes.run(filled.config, f"{step}=kill", "build", backfill.id) == KILLED
    check(filled, before)
    assert processes.run(filled.config, "", "build", backfill.id) == DONE
    check(filled, before)
    assert processes.run(filled.config, "", "promote", backfill.id) == DONE
    check(filled, with_second(before, SPANS))


@pytest.mark.deep
@pytest.mark.parametrize("step", BUILD_STEPS)
def test_a_build_that_is_frozen_until_the_backfill_was_promoted_and_undone_changes_nothing(
    filled: Scene, processes: DriverProcesses, step: str
) -> None:
    before = all_first(filled)
    backfill = request(filled, *RANGE)
    frozen = processes.start(filled.config, f"{step}=stop", "build", backfill.id)
    assert processes.wait(frozen) == -signal.SIGSTOP
    assert processes.run(filled.config, "", "build", backfill.id) == DONE
    assert processes.run(filled.config, "", "promote", backfill.id) == DONE
    after = with_second(before, SPANS)
    go_on(filled, after, "second")
    os.kill(frozen, signal.SIGCONT)
    assert processes.wait(frozen) in (DONE, REFUSED)
    check(filled, after)
    assert processes.run(filled.config, "", "undo", backfill.id) == DONE
    check(filled, {key: before.get(key, parser) for key, parser in after.items()})


@pytest.mark.parametrize(
    ("act", "step"),
    [
        ("promote", "backfill.quarantine_moved"),
        *(
            pytest.param(act, step, marks=pytest.mark.deep)
            for act in ("promote", "undo", "cancel")
            for step in CHANGE_STEPS
            if (act, step) != ("promote", "backfill.quarantine_moved")
        ),
        *(pytest.param("promote", step, marks=pytest.mark.deep) for step in CUTS),
    ],
)
def test_a_killed_change_is_finished_by_the_same_command(
    filled: Scene, processes: DriverProcesses, act: str, step: str
) -> None:
    backfill, expected = prepare(filled, act)
    assert processes.run(filled.config, f"{step}=kill", act, backfill) == KILLED
    check_sound(filled)
    again = processes.run(filled.config, "", act, backfill)
    assert again == DONE
    check(filled, expected)
    go_on(filled, expected, "second")
    check(filled, expected)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("act", "step"), [(act, step) for act in ("promote", "undo", "cancel") for step in CHANGE_STEPS]
)
def test_a_change_that_is_frozen_until_others_have_ended_changes_nothing(
    filled: Scene, processes: DriverProcesses, act: str, step: str
) -> None:
    backfill, expected = prepare(filled, act)
    frozen = processes.start(filled.config, f"{step}=stop", act, backfill)
    assert processes.wait(frozen) == -signal.SIGSTOP
    assert processes.run(filled.config, "", act, backfill) == DONE
    check(filled, expected)
    go_on(filled, expected, "second")
    if act != "cancel":  # and the opposite, so that the frozen one would do harm if it went on
        expected = opposite(filled, act, backfill, expected)
    check(filled, expected)
    os.kill(frozen, signal.SIGCONT)
    assert processes.wait(frozen) in (DONE, REFUSED)
    check(filled, expected)
    assert files_of_all_snapshots(filled) <= filled.data_files()


def test_runs_go_on_after_a_promotion_that_brought_the_first_messages_to_quarantine(
    make_scene: Callable[..., Scene],
) -> None:
    scene = make_scene(parser=FIRST)
    put(scene, TP0, 1, 7)
    scene.run()
    assert scene.quarantine.metadata.snapshots == []
    use(scene, SECOND)
    promote(scene, build(scene, "flights/0@4-6"))
    expected = with_second(all_first(scene), [(TP0, 4, 7)])
    check(scene, expected)
    go_on(scene, expected, "second")
    check(scene, expected)


def prepare(scene: Scene, act: str) -> tuple[str, dict[Key, str]]:
    """Build a backfill so that `act` applies, let the stream go on, and return what readers see after the act."""
    expected = all_first(scene)
    backfill = build(scene, *RANGE)
    if act == "undo":
        assert promote(scene, backfill)
    # The bounds of the range lie in other files now: they have to be cut again.
    go_on(scene, expected, "second")
    return backfill.id, with_second(expected, SPANS) if act == "promote" else expected


def opposite(scene: Scene, act: str, backfill: str, expected: dict[Key, str]) -> dict[Key, str]:
    if act == "promote":
        assert undo(scene, backfill)
        return {
            (tp, offset): "first" if any(tp == a and b <= offset < c for a, b, c in SPANS) else parser
            for (tp, offset), parser in expected.items()
        }
    assert promote(scene, backfill)
    return with_second(expected, SPANS)
