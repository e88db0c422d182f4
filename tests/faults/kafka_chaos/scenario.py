"""A seed's scenario: topics, the faults of brokers, and the reports that a watch must make (the oracle)."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

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
class Hit:
    """A broker, and what happens to it."""

    hurt: Hurt
    broker: int


@dataclass(frozen=True, slots=True)
class Step:
    """A broker is hurt, the watch reports it, the broker comes back, the watch reports that."""

    first: Hit
    second: Hit | None = None
    """Hurt before the first is back: then no controller has a majority. One of the two comes back before the other."""
    second_is_back_first: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """The content of a scenario."""

    seed: int
    topics: tuple[TopicKind, ...]
    steps: tuple[Step, ...]
    patient: bool
    """The limits of the promises are longer than any step, so every state is history and none is an alert."""


def draw(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    rng = random.Random(seed)
    topics = tuple(kind for kind in TopicKind if rng.random() < 0.6) or (rng.choice(list(TopicKind)),)
    patient = rng.random() < 0.2
    if not patient and rng.random() < 0.35:
        brokers = rng.sample(BROKERS, 2)
        first, second = (Hit(rng.choice(list(Hurt)), broker) for broker in brokers)
        return Scenario(seed, topics, (Step(first, second, _is_second_back_first(rng, first, second)),), patient)
    steps = (Step(Hit(rng.choice(list(Hurt)), rng.choice(BROKERS))) for _ in range(rng.randint(1, 2)))
    return Scenario(seed, topics, tuple(steps), patient)


def _is_second_back_first(rng: random.Random, first: Hit, second: Hit) -> bool:
    """Return which broker comes back first: a broker that starts waits for all that run, so a frozen one before it."""
    if (first.hurt is Hurt.FREEZE) != (second.hurt is Hurt.FREEZE):
        return second.hurt is Hurt.FREEZE
    return rng.random() < 0.5


def expected_promises(topics: tuple[TopicKind, ...], away: set[int]) -> set[str]:
    """Return which promises about replicas are broken while brokers are away, from the definition of each state."""
    return set().union(*(expected_of(kind, away) for kind in topics))


def expected_of(kind: TopicKind, away: set[int]) -> set[str]:
    """Return the same for one topic."""
    found = set()
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
