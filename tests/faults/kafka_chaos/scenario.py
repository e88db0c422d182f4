"""A seed's scenario: topics, what happens to which brokers, and what a watch must report (the oracle)."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Hurt", "Scenario", "Step", "TopicKind", "draw", "expected_promises"]

BROKERS = (1, 2, 3)


class Hurt(StrEnum):
    """What happens to a broker."""

    KILL = "kill"
    FREEZE = "freeze"
    RESTART = "restart"
    """A clean stop. The broker hands its leaderships over before."""


class TopicKind(StrEnum):
    """Topics whose partitions begin with each broker in turn."""

    ONE = "one"
    """One replica, so it goes offline with its broker."""
    PAIR = "pair"
    """Two replicas; one in sync is enough to write."""
    TWO = "two"
    """Two replicas, and both must be in sync."""
    THREE = "three"
    """Three replicas, of which two must be in sync."""

    @property
    def replicas(self) -> list[list[int]]:
        count = {"one": 1, "pair": 2, "two": 2, "three": 3}[self]
        return [[BROKERS[(first + n) % 3] for n in range(count)] for first in range(3)]

    @property
    def min_in_sync(self) -> int:
        return 2 if self in (TopicKind.TWO, TopicKind.THREE) else 1


@dataclass(frozen=True, slots=True)
class Step:
    """One broker is hurt, the watch reports it, the broker comes back, the watch reports that."""

    hurt: Hurt
    broker: int
    blip: bool = False
    """The broker comes back within two seconds: that is no incident, unless it was killed or restarted."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a seed does."""

    seed: int
    topics: tuple[TopicKind, ...]
    steps: tuple[Step, ...]


def draw(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    rng = random.Random(seed)
    topics = tuple(kind for kind in TopicKind if rng.random() < 0.6) or (rng.choice(list(TopicKind)),)
    steps = []
    for _ in range(rng.randint(1, 3)):
        hurt = rng.choice(list(Hurt))
        steps.append(Step(hurt, rng.choice(BROKERS), blip=hurt is Hurt.FREEZE and rng.random() < 0.25))
    return Scenario(seed, topics, tuple(steps))


def expected_promises(topics: tuple[TopicKind, ...], away: set[int]) -> set[str]:
    """Return which promises about replicas are broken while brokers are away, from the definition of each state."""
    found = set()
    for kind in topics:
        for replicas in kind.replicas:
            live = [broker for broker in replicas if broker not in away]
            if len(live) == len(replicas):
                continue
            if not live:
                found.add("kafka_offline_partitions")
                continue
            found.add("kafka_under_replicated")
            if len(live) < kind.min_in_sync:
                found.add("kafka_under_min_isr")
            if len(live) == 1:
                found.add("kafka_single_in_sync_replica")
    return found
