"""Random histories of live runs, compactions, backfills and kills, against a dictionary of what readers must see."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import pytest
from backfill_scenes import (
    FIRST,
    SECOND,
    TP0,
    TP1,
    Key,
    Killed,
    build,
    change,
    check,
    check_verified,
    die_at,
    parser_of,
    put,
    small_tasks,
    use,
)
from partition_scenes import Scene
from quarantine_scenes import rewrite_quarantine

from waybill.base.errors import BackfillRefused
from waybill.tables.backfill.request import BackfillRequest
from waybill.tables.backfill.states import BackfillAction

pytestmark = [pytest.mark.integration, pytest.mark.matrix]

MakeScene = Callable[..., Scene]

STEPS = ("claimed", "decided", "quarantine_moved", "moved")
STARTS = {TP0: 0, TP1: 100}


class History:
    """One random history. Each method is one event; `expected` is what readers must see after it."""

    def __init__(self, make_scene: MakeScene, seed: int) -> None:
        self.rng = random.Random(seed)
        by = self.rng.choice(["hour", "day"])
        self.scene = make_scene(parser=FIRST, partition_by=by)
        self.ends = dict(STARTS)
        self.expected: dict[Key, str] = {}
        self.promoted: list[tuple[BackfillRequest, dict[Key, str]]] = []
        """In order, each with what the messages of its range were before."""
        self.waiting: list[BackfillRequest] = []
        self.live_run()

    def step(self) -> None:
        weights = {
            self.live_run: 3,
            self.compact: 1,
            self.build: 3,
            self.promote: 3,
            self.undo: 2,
            self.cancel: 1,
        }
        self.rng.choices(list(weights), list(weights.values()))[0]()
        check(self.scene, self.expected)

    def live_run(self) -> None:
        use(self.scene, self.rng.choice([FIRST, SECOND]))
        for tp in self.rng.sample(list(self.ends), self.rng.choice([1, 2])):
            end = self.ends[tp] + self.rng.randrange(3, 15)
            put(self.scene, tp, self.ends[tp], end, hours=self.rng.choice([1, 5]))
            self.expected |= {(tp, offset): self.parser for offset in range(self.ends[tp], end)}
            self.ends[tp] = end
        self.scene.run()

    @property
    def parser(self) -> str:
        return parser_of(self.scene.stream)

    def compact(self) -> None:
        if self.rng.random() < 0.5:
            self.scene.rewrite()
        else:
            rewrite_quarantine(self.scene)

    def build(self) -> None:
        use(self.scene, self.rng.choice([FIRST, SECOND]))
        chosen = []
        for tp in self.rng.sample(list(self.ends), self.rng.choice([1, 2])):
            if self.ends[tp] > STARTS[tp]:
                first = self.rng.randrange(STARTS[tp], self.ends[tp])
                chosen.append(f"{tp}@{first}-{self.rng.randrange(first, self.ends[tp])}")
        with suppress(BackfillRefused):  # it overlaps with one that is open
            self.waiting.append(build(self.scene, *chosen))

    def promote(self) -> None:
        if self.waiting:
            backfill = self.waiting.pop(self.rng.randrange(len(self.waiting)))
            parser = parser_of(backfill.plan.parse_settings)
            keys = self._keys(backfill)
            self.promoted.append((backfill, {key: self.expected[key] for key in keys}))
            self._change(backfill, BackfillAction.PROMOTE)
            self.expected |= dict.fromkeys(keys, parser)

    def undo(self) -> None:
        if self.promoted:
            backfill, before = self.promoted.pop()
            self._change(backfill, BackfillAction.UNDO)
            self.expected |= before
            self.waiting.append(backfill)

    def cancel(self) -> None:
        if self.waiting:
            self._change(self.waiting.pop(), BackfillAction.CANCEL)

    def _keys(self, backfill: BackfillRequest) -> list[Key]:
        return [(tp, offset) for tp, (first, end) in backfill.ranges for offset in range(first, end)]

    def _change(self, backfill: BackfillRequest, action: BackfillAction) -> None:
        """Do the action; often it is killed at some step first, and a live run may come before it is repeated."""
        try:
            change(self.scene, backfill, action, on_step=die_at(self.rng.choice([*STEPS, "never", "never"])))
        except Killed:
            check_verified(self.scene)
            if self.rng.random() < 0.5:
                self.live_run()
            change(self.scene, backfill, action)


@pytest.fixture(autouse=True)
def _small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    small_tasks(monkeypatch)


@pytest.mark.parametrize("seed", range(1))
def test_random_histories_show_what_the_decisions_say(make_scene: MakeScene, seed: int) -> None:
    history = History(make_scene, seed)
    for _ in range(10):
        history.step()


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(100, 125))
def test_many_random_histories_show_what_the_decisions_say(make_scene: MakeScene, seed: int) -> None:
    history = History(make_scene, seed)
    for _ in range(20):
        history.step()
