"""What a seed stands for: messages that come in waves, and for each wave what goes wrong while it is partitioned."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

from chaos.s3_proxy import CallFault, Effect, S3Call

from waybill import failpoints

__all__ = ["DRIVER_STEPS", "Act", "Meanwhile", "Scenario", "Wave", "draw"]

_KIB = 1 << 10

DRIVER_STEPS = tuple(name for name in failpoints.PARTITION if name != "partition.committed")
"""Where a driver that sleeps is a zombie: it still has something to do."""


class Meanwhile(StrEnum):
    """What happens while a driver is frozen at a step."""

    RIVAL = "another run goes on"
    MORE_DATA = "more data comes, and another run goes on"
    REWRITE = "a compaction"
    STRANGER = "a commit of somebody else"
    CATALOG_LOCKED = "the catalog is locked until the driver gives up"
    DAMAGE = "an object is damaged, and mended after the driver's end"
    DELETE = "an object is deleted, and comes back after the driver's end"
    DAMAGE_AND_RIVAL = "an object is damaged, another run goes on, and it is mended"


@dataclass(frozen=True)
class Act:
    """One thing that goes wrong. It begins with a driver that is armed with a failpoint, if there is one."""

    failpoint: str = ""
    nth: int = 1
    meanwhile: Meanwhile | None = None
    """None: the driver is killed there. Else it is frozen, and this happens before it goes on."""
    calls: tuple[CallFault, ...] = ()
    """Calls of S3 that go wrong for this driver."""
    rival_delays: tuple[str, ...] = ()
    """Two drivers at once, each with these failpoints."""

    def __str__(self) -> str:
        if self.rival_delays:
            return "two drivers at once"
        if self.calls:
            return f"S3 {self.calls[0].call}: {self.calls[0].effect}"
        return f"SIGKILL at {self.failpoint}" if self.meanwhile is None else f"{self.meanwhile} at {self.failpoint}"


@dataclass(frozen=True)
class Wave:
    """Some messages, and what goes wrong before the next ones come."""

    messages: int
    acts: tuple[Act, ...]
    clean_run: bool
    """Whether a run in peace ends the wave."""


@dataclass(frozen=True)
class Scenario:
    """See the module."""

    seed: int
    partitions: int
    max_bytes: int
    """Of a backup object."""
    task_bytes: int
    run_bytes: int
    value_bytes: int
    junk_share: float
    waves: tuple[Wave, ...]


def draw(seed: int) -> Scenario:
    """The scenario of a seed: the same for ever, unless this file changes."""
    rng = random.Random(f"waybill partition {seed}")
    return Scenario(
        seed=seed,
        partitions=rng.choice((1, 2, 3)),
        max_bytes=rng.choice((4 * _KIB, 16 * _KIB, 64 * _KIB)),
        task_bytes=rng.choice((8 * _KIB, 32 * _KIB, 1024 * _KIB)),
        run_bytes=rng.choice((32 * _KIB, 1024 * _KIB, 1024 * _KIB)),
        value_bytes=rng.choice((20, 100, 300)),
        junk_share=rng.choice((0.0, 0.02, 0.2)),
        waves=tuple(_wave(rng) for _ in range(rng.randint(1, 3))),
    )


def _wave(rng: random.Random) -> Wave:
    acts = tuple(_act(rng) for _ in range(rng.choice((1, 1, 2))))
    return Wave(rng.randint(50, 500), acts, clean_run=rng.random() < 0.5)


def _act(rng: random.Random) -> Act:
    kind = rng.random()
    if kind < 0.4:
        return Act(rng.choice(failpoints.PARTITION), rng.choice((1, 1, 2)))
    if kind < 0.75:
        return Act(rng.choice(DRIVER_STEPS), 1, rng.choice(list(Meanwhile)))
    if kind < 0.9:
        call = rng.choice((S3Call.GET_OBJECT, S3Call.PUT_OBJECT, S3Call.LIST_OBJECTS))
        effects = [Effect.ERROR_500, Effect.ERROR_503, Effect.RESET]
        effects += [Effect.APPLIED_500, Effect.APPLIED_RESET] if call is S3Call.PUT_OBJECT else []
        return Act(calls=(CallFault(call, rng.choice(effects), rng.randint(1, 8), rng.choice((1, 3, 1000))),))
    return Act(rival_delays=tuple(f"{rng.choice(DRIVER_STEPS)}=sleep:{rng.uniform(0, 0.5):.2f}" for _ in range(2)))
