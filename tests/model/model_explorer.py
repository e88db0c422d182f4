"""Who goes on, and what goes wrong: every schedule within bounds, or those that somebody else chooses.

The exploration is stateless: each schedule is run from the beginning, and told from the others by the places at which
it does not do the usual thing, which is that the lane that ran last goes on and its call does what it should. What it
does instead is paid for from two budgets: preemptions (another lane goes on although this one could), and faults.

A schedule is given up where it comes to a state that another one with the same budget left was in: the same world, and
lanes that have seen the same. Other lanes are let in, and things go wrong, only before calls that other lanes can see
or change: what lies between two of those commutes with whatever the others do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from model_lanes import Lane, Scenario, World, arrive, end, model_services, new_world, run_quietly, shown

__all__ = ["Counterexample", "Explored", "explore", "run_schedule"]


@dataclass(frozen=True)
class Option:
    """One way to go on. The first of a list is the usual one and costs nothing."""

    carry_out: Callable[[], Any]
    preemptions: int = 0
    faults: int = 0


class Counterexample(AssertionError):
    """A schedule that breaks a promise, step by step."""

    def __init__(self, world: World) -> None:
        self.reason = world.broken
        width = max(len(who) for who, _, _ in world.steps)
        lines = [f"{n:4} {who:{width}} {what} -> {shown(said)}" for n, (who, what, said) in enumerate(world.steps, 1)]
        super().__init__(f"{world.broken}\n{world.scenario}\n" + "\n".join(lines))


@dataclass(frozen=True)
class Explored:
    """What an exploration has seen."""

    schedules: int
    states: int
    """Different ones, in which there was something to decide."""
    steps: int
    """Calls and failpoints, over all schedules."""
    seen: frozenset[tuple[str, str]]
    """What happened: each kind of call with each of its faults, and each failpoint."""

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
        """The first of the options, without the others."""
        alive = self.alive
        return self._step(self.current if self.current in alive else alive[0])

    def options(self) -> list[Option]:
        """How it may go on; empty at the end."""
        alive = self.alive
        if not alive:
            return []
        goes_on = self.current in alive
        order = [self.current] if goes_on else []
        order += [each for each in alive if each is not self.current]
        if goes_on and not self.current.is_shared:
            return [self._step(self.current)]
        options = [self._step(each, preemptions=int(goes_on and each is not self.current)) for each in order]
        options += [Option(lambda late=late: self._deliver(late)) for late in self.world.late]  # type: ignore[misc]
        # What goes wrong goes wrong before or in the step of the lane whose turn it is.
        return options + self._faults(order[0])

    def _step(self, which: Lane, verdict: str | None = None, preemptions: int = 0) -> Option:
        def carry_out() -> None:
            self.current = which
            self.world.disturbed |= verdict is not None
            which.switch(verdict)

        return Option(carry_out, preemptions, faults=int(verdict is not None))

    def _deliver(self, late: Any) -> None:
        self.world.late.remove(late)
        arrive(self.world, late)

    def _faults(self, which: Lane) -> list[Option]:
        scenario, found = self.scenario, []
        if scenario.call_faults:
            found += [self._step(which, verdict) for verdict in which.faults]
        if scenario.crashes:
            found.append(self._fault("is killed", which, self._crash))
        if scenario.expiries:
            for each in self.alive:
                if each.name in self.world.locks.values():
                    found.append(self._fault("loses its session and does not know", each, self._expire))
                    found.append(self._fault("loses its session and hears of it", each, self._expire_and_tell))
        if scenario.wipes and self.world.nodes:
            found.append(self._fault("ZooKeeper loses its data", None, lambda _: self.world.wipe()))
        if scenario.retention and self.world.earliest < self.world.end:
            found.append(self._fault("Kafka deletes its oldest", None, lambda _: self.world.delete_first_letter()))
        return found

    def _fault(self, what: str, which: Lane | None, act: Callable[[Any], None]) -> Option:
        def carry_out() -> None:
            self.world.disturbed = True
            self.world.steps.append((which.name if which else "", what, "fault"))
            act(which)

        return Option(carry_out, faults=1)

    def _crash(self, which: Lane) -> None:
        self.crashed.add(which.name)
        self.world.end_session(which.name)

    def _expire(self, which: Lane) -> None:
        self.world.end_session(which.name)

    def _expire_and_tell(self, which: Lane) -> None:
        self.world.end_session(which.name)
        assert which.session is not None
        which.session.say_lost()
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
        """Schedules to run: at which steps which option is taken that is not the first."""
        self.seen: set[int] = set()
        self.ended: set[int] = set()
        self.schedules = self.steps = 0
        self.met: set[tuple[str, str]] = set()

    def run(self, deviations: dict[int, int]) -> None:
        self.schedules += 1
        run, new_from = _Run(self.scenario), max(deviations, default=-1) + 1
        budget, step = (self.preemptions, self.faults), 0
        while step < new_from:  # again, up to where this schedule begins to be its own
            taken = run.options()[deviations[step]] if step in deviations else run.usual()
            budget = (budget[0] - taken.preemptions, budget[1] - taken.faults)
            taken.carry_out()
            step += 1
        self._go_on(run, deviations, step, budget)
        self.steps += len(run.world.steps)
        self.met.update(_kind(what, said) for _, what, said in run.world.steps)
        run.close()
        if run.world.broken:
            raise Counterexample(run.world)

    def _go_on(self, run: _Run, deviations: dict[int, int], step: int, budget: tuple[int, int]) -> None:
        """By the usual option, noting down the others for later, to the end or to a state that was seen before."""
        while not run.world.broken and (options := run.options()):
            if len(options) > 1:
                state = hash((run.state(), budget))
                if state in self.seen:
                    return
                self.seen.add(state)
                self._branch(deviations, step, options, budget)
            options[0].carry_out()
            step += 1
        if not run.world.broken:
            self._end(run)

    def _branch(self, taken: dict[int, int], step: int, options: list[Option], budget: tuple[int, int]) -> None:
        for number, option in enumerate(options):
            if number and option.preemptions <= budget[0] and option.faults <= budget[1]:
                self.left.append({**taken, step: number})

    def _end(self, run: _Run) -> None:
        world = hash(run.world.key())
        if world not in self.ended:  # the quiet run looks at nothing but the world
            self.ended.add(world)
            run_quietly(run.world, run.lanes)


def _kind(what: str, said: Any) -> tuple[str, str]:
    """A step without its figures."""
    if what.startswith("at ") or not isinstance(said, str):
        return what, ""
    words = " ".join(what.split()[:2]) if ": " in what else what
    return words, said if "," in said or said.startswith("answered") else ""


def run_schedule(scenario: Scenario, choose: Callable[[int], int]) -> World:
    """Run one schedule: `choose` gets the number of options and names one. Raises `Counterexample`."""
    with model_services(scenario):
        run = _Run(replace(scenario))
        while (options := run.options()) and not run.world.broken:
            options[choose(len(options))].carry_out()
        if not run.world.broken:
            run_quietly(run.world, run.lanes)
        run.close()
    if run.world.broken:
        raise Counterexample(run.world)
    return run.world
