"""Explores schedules: which lane runs next, and which call fails. Every schedule within bounds, or chosen ones.

The exploration is stateless: each schedule runs from the beginning. The usual step is that the lane that ran last
continues and its call succeeds. A schedule is defined by its deviations: the steps at which it does something else. Two
budgets limit the deviations: preemptions (another lane runs although this one could continue), and faults.

A schedule ends early in a state that another schedule with the same remaining budget has reached: the same world, and
lanes with the same history. Other lanes and faults are tried only before calls that other lanes can see or change: the
steps in between commute with the steps of the other lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from model_lanes import Lane, Scenario, World, arrive, end, model_services, new_world, run_quietly, shown


@dataclass(frozen=True)
class Option:
    """One possible next step. The first of a list is the usual one and costs nothing."""

    execute: Callable[[], Any]
    preemptions: int = 0
    faults: int = 0


class Counterexample(AssertionError):
    """A schedule that breaks a promise. The message lists its steps."""

    def __init__(self, world: World) -> None:
        self.reason = world.broken
        width = max(len(who) for who, _, _ in world.steps)
        lines = [
            f"{n:4} {who:{width}} {what} -> {shown(result)}" for n, (who, what, result) in enumerate(world.steps, 1)
        ]
        super().__init__(f"{world.broken}\n{world.scenario}\n" + "\n".join(lines))


@dataclass(frozen=True)
class Explored:
    """The figures of an exploration."""

    schedules: int
    states: int
    """Different states with more than one option."""
    steps: int
    """Calls and failpoints, over all schedules."""
    seen: frozenset[tuple[str, str]]
    """The events: each kind of call with each of its faults, and each failpoint."""

    def __str__(self) -> str:
        return f"{self.schedules:,} schedules, {self.states:,} states, {self.steps:,} steps"


class _Run:
    """One schedule, step by step."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.world, self.lanes = new_world(scenario)
        self.current = self.lanes[0]
        self.crashed: set[str] = set()

    @property
    def alive(self) -> list[Lane]:
        return [each for each in self.lanes if not each.dead and each.name not in self.crashed]

    def usual(self) -> Option:
        """Return the first option, without computing the others."""
        alive = self.alive
        return self._step(self.current if self.current in alive else alive[0])

    def options(self) -> list[Option]:
        """Return all possible next steps; empty at the end."""
        alive = self.alive
        if not alive:
            return []
        can_continue = self.current in alive
        order = [self.current] if can_continue else []
        order += [each for each in alive if each is not self.current]
        if can_continue and not self.current.is_shared:
            return [self._step(self.current)]
        options = [self._step(each, preemptions=int(can_continue and each is not self.current)) for each in order]
        options += [Option(lambda late=late: self._deliver(late)) for late in self.world.late]  # type: ignore[misc]
        # Faults happen before or in the step of the lane that would run next.
        return options + self._faults(order[0])

    def _step(self, which: Lane, fault: str | None = None, preemptions: int = 0) -> Option:
        def execute() -> None:
            self.current = which
            self.world.disturbed |= fault is not None
            which.switch(fault)

        return Option(execute, preemptions, faults=int(fault is not None))

    def _deliver(self, late: Any) -> None:
        self.world.late.remove(late)
        arrive(self.world, late)

    def _faults(self, which: Lane) -> list[Option]:
        scenario, found = self.scenario, []
        if scenario.call_faults:
            found += [self._step(which, fault) for fault in which.faults]
        if scenario.crashes:
            found.append(self._fault("is killed", which, self._crash))
        if scenario.expiries:
            for each in self.alive:
                if each.name in self.world.locks.values():
                    found.append(self._fault("loses its session without noticing", each, self._expire))
                    found.append(self._fault("loses its session and notices", each, self._expire_and_notify))
        if scenario.wipes and self.world.nodes:
            found.append(self._fault("ZooKeeper loses its data", None, lambda _: self.world.wipe()))
        if scenario.retention and self.world.earliest < self.world.end:
            found.append(self._fault("Kafka deletes its oldest", None, lambda _: self.world.delete_first_letter()))
        return found

    def _fault(self, what: str, which: Lane | None, act: Callable[[Any], None]) -> Option:
        def execute() -> None:
            self.world.disturbed = True
            self.world.steps.append((which.name if which else "", what, "fault"))
            act(which)

        return Option(execute, faults=1)

    def _crash(self, which: Lane) -> None:
        self.crashed.add(which.name)
        self.world.end_session(which.name)

    def _expire(self, which: Lane) -> None:
        self.world.end_session(which.name)

    def _expire_and_notify(self, which: Lane) -> None:
        self.world.end_session(which.name)
        assert which.session is not None
        which.session.notify_lost()
        which.history = hash((which.history, "lost"))

    def state(self) -> tuple[Any, ...]:
        lanes = tuple((each.name, each.dead or each.name in self.crashed, each.history) for each in self.lanes)
        return (self.world.key(), lanes, self.current.name)

    def close(self) -> None:
        end(self.world, self.lanes)


def explore(scenario: Scenario, *, preemptions: int, faults: int, limit: int = 1_000_000) -> Explored:
    """Run every schedule within the budgets. Raises `Counterexample` for the first that breaks a promise."""
    explorer = _Explorer(scenario, preemptions, faults)
    with model_services(scenario):
        while explorer.left:
            explorer.run(explorer.left.pop())
            assert explorer.schedules <= limit, f"more than {limit} schedules"
    return Explored(explorer.schedules, len(explorer.seen), explorer.steps, frozenset(explorer.met))


class _Explorer:
    def __init__(self, scenario: Scenario, preemptions: int, faults: int) -> None:
        self.scenario, self.preemptions, self.faults = scenario, preemptions, faults
        self.left: list[dict[int, int]] = [{}]
        """Schedules to run, each as its deviations: the number of the option that is taken, by step."""
        self.seen: set[int] = set()
        self.ended: set[int] = set()
        self.schedules = self.steps = 0
        self.met: set[tuple[str, str]] = set()

    def run(self, deviations: dict[int, int]) -> None:
        self.schedules += 1
        run, new_from = _Run(self.scenario), max(deviations, default=-1) + 1
        budget, step = (self.preemptions, self.faults), 0
        while step < new_from:  # repeat the steps up to this schedule's last deviation
            taken = run.options()[deviations[step]] if step in deviations else run.usual()
            budget = (budget[0] - taken.preemptions, budget[1] - taken.faults)
            taken.execute()
            step += 1
        self._continue(run, deviations, step, budget)
        self.steps += len(run.world.steps)
        self.met.update(_kind(what, result) for _, what, result in run.world.steps)
        run.close()
        if run.world.broken:
            raise Counterexample(run.world)

    def _continue(self, run: _Run, deviations: dict[int, int], step: int, budget: tuple[int, int]) -> None:
        """Take usual steps to the end or to a known state, and keep the other options for later."""
        while not run.world.broken and (options := run.options()):
            if len(options) > 1:
                state = hash((run.state(), budget))
                if state in self.seen:
                    return
                self.seen.add(state)
                self._branch(deviations, step, options, budget)
            options[0].execute()
            step += 1
        if not run.world.broken:
            self._end(run)

    def _branch(self, taken: dict[int, int], step: int, options: list[Option], budget: tuple[int, int]) -> None:
        for number, option in enumerate(options):
            if number and option.preemptions <= budget[0] and option.faults <= budget[1]:
                self.left.append({**taken, step: number})

    def _end(self, run: _Run) -> None:
        world = hash(run.world.key())
        if world not in self.ended:  # the quiet run depends on nothing but the world
            self.ended.add(world)
            run_quietly(run.world, run.lanes)


def _kind(what: str, result: Any) -> tuple[str, str]:
    """Return a step without its figures."""
    if what.startswith("at ") or not isinstance(result, str):
        return what, ""
    words = " ".join(what.split()[:2]) if ": " in what else what
    return words, result if "," in result or result.startswith("answered") else ""


def run_schedule(scenario: Scenario, choose: Callable[[int], int]) -> World:
    """Run one schedule. `choose` gets the number of options and returns one of them. Raises `Counterexample`."""
    with model_services(scenario):
        run = _Run(replace(scenario))
        while (options := run.options()) and not run.world.broken:
            options[choose(len(options))].execute()
        if not run.world.broken:
            run_quietly(run.world, run.lanes)
        run.close()
    if run.world.broken:
        raise Counterexample(run.world)
    return run.world
