"""The scenario of a seed: messages that arrive in waves, and for each wave the faults while it is partitioned."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

from chaos.s3_proxy import CallFault, Effect, S3Call

from waybill.base import failpoints

_KIB = 1 << 10

DRIVER_STEPS = tuple(name for name in failpoints.PARTITION if name != "partition.committed")
"""Steps at which a frozen driver still has work to do, so that it is a zombie when it resumes."""

_OF_QUARANTINE = ("partition.quarantine_branched", "partition.quarantine_published")
"""Steps that a run without junk does not reach."""
_REACHED_AGAIN = (
    "partition.planned",
    "partition.staged",
    "partition.branched",
    "partition.audited",
    *_OF_QUARANTINE,
    "partition.committed",
)
"""Steps that a driver reaches if it finds the staged files of another."""
_REACHED_OFTEN = ("partition.span_read", "partition.file_sent")


class Meanwhile(StrEnum):
    """An event while a driver is frozen at a step."""

    RIVAL = "another run goes on"
    MORE_DATA = "more data comes, and another run goes on"
    REWRITE = "a compaction"
    STRANGER = "a commit of somebody else"
    CATALOG_LOCKED = "the catalog is locked until the driver gives up"
    DAMAGE = "an object is damaged, and mended after the driver's end"
    DELETE = "an object is deleted, and comes back after the driver's end"
    DAMAGE_AND_RIVAL = "an object is damaged, another run goes on, and it is mended"


class Kind(StrEnum):
    """Kind of an act."""

    KILL = "kill"
    FREEZE = "freeze"
    CALLS = "calls of S3"
    RIVALS = "two drivers at once"


@dataclass(frozen=True)
class Act:
    """One fault. With `failpoint` it starts a driver that is armed with it."""

    failpoint: str = ""
    nth: int = 1
    meanwhile: Meanwhile | None = None
    """None: the driver is killed at the failpoint. Else it is frozen, and this happens before it resumes."""
    calls: tuple[CallFault, ...] = ()
    """Calls of S3 that fail for this driver."""
    rival_delays: tuple[str, ...] = ()
    """Failpoints of two concurrent drivers."""

    @property
    def kind(self) -> Kind:
        """The kind, by which of the fields is set."""
        if self.rival_delays:
            return Kind.RIVALS
        if self.calls:
            return Kind.CALLS
        return Kind.KILL if self.meanwhile is None else Kind.FREEZE

    def __str__(self) -> str:
        if self.kind is Kind.CALLS:
            return f"S3 {self.calls[0].call}: {self.calls[0].effect}"
        if self.kind is Kind.RIVALS:
            return str(self.kind)
        return f"SIGKILL at {self.failpoint}" if self.meanwhile is None else f"{self.meanwhile} at {self.failpoint}"


@dataclass(frozen=True)
class Wave:
    """Some messages, and the faults before the next wave."""

    messages: int
    acts: tuple[Act, ...]
    clean_run: bool
    """Whether a run without faults ends the wave."""


@dataclass(frozen=True)
class Scenario:
    """What the harness plays for one seed."""

    seed: int
    partitions: int
    max_bytes: int
    """Maximum size of a backup object."""
    task_bytes: int
    run_bytes: int
    value_bytes: int
    junk_share: float
    waves: tuple[Wave, ...]
    guard: bool = True
    """Whether a commit checks for a rival's commit. Tests switch it off to show that they detect the fault."""


def draw(seed: int, *, guard: bool = True) -> Scenario:
    """Return the scenario of a seed. A seed always gives the same scenario, unless this file changes."""
    rng = random.Random(f"waybill partition {seed}")
    partitions, junk_share = rng.choice((1, 2, 3)), rng.choice((0.0, 0.1, 0.2))
    waves: list[Wave] = []
    for _ in range(rng.randint(1, 3)):
        has_files = any(wave.clean_run for wave in waves)
        waves.append(_ActDrawer(rng, partitions, has_junk=junk_share > 0, has_files=has_files).wave())
    return Scenario(
        seed=seed,
        partitions=partitions,
        max_bytes=rng.choice((4 * _KIB, 16 * _KIB, 64 * _KIB)),
        task_bytes=rng.choice((8 * _KIB, 32 * _KIB, 1024 * _KIB)),
        run_bytes=rng.choice((32 * _KIB, 1024 * _KIB, 1024 * _KIB)),
        value_bytes=rng.choice((20, 100, 300)),
        junk_share=junk_share,
        waves=tuple(waves),
        guard=guard,
    )


@dataclass(frozen=True)
class _ActDrawer:
    """Draws acts that can take effect: a driver reaches the step and still has work to do."""

    rng: random.Random
    partitions: int
    has_junk: bool
    has_files: bool
    """Whether the table has files when the wave begins."""

    def wave(self) -> Wave:
        """Draw a wave. After a kill the next act of the wave has work to do; after any other act it may have none."""
        acts = [self._act()]
        if acts[0].kind is Kind.KILL and acts[0].failpoint != "partition.committed":
            staged = acts[0].failpoint in _REACHED_AGAIN and acts[0].failpoint != "partition.planned"
            acts.append(self._kill(_REACHED_AGAIN if staged else failpoints.PARTITION))
        return Wave(self.rng.randint(100, 500), tuple(acts), clean_run=self.rng.random() < 0.5)

    def _act(self) -> Act:
        kind = self.rng.random()
        if kind < 0.4:
            return self._kill(failpoints.PARTITION)
        if kind < 0.75:
            return self._freeze()
        if kind < 0.9:
            return Act(calls=(self._call_fault(),))
        delays = (f"{self._step(DRIVER_STEPS)}=sleep:{self.rng.uniform(0, 0.5):.2f}" for _ in range(2))
        return Act(rival_delays=tuple(delays))

    def _step(self, steps: tuple[str, ...]) -> str:
        return self.rng.choice([step for step in steps if self.has_junk or step not in _OF_QUARANTINE])

    def _kill(self, steps: tuple[str, ...]) -> Act:
        step = self._step(steps)
        often = step in _REACHED_OFTEN and self.partitions > 1
        return Act(step, self.rng.choice((1, 2)) if often else 1)

    def _freeze(self) -> Act:
        meanwhile = [what for what in Meanwhile if self.has_files or what is not Meanwhile.REWRITE]
        return Act(self._step(DRIVER_STEPS), 1, self.rng.choice(meanwhile))

    def _call_fault(self) -> CallFault:
        call = self.rng.choice((S3Call.GET_OBJECT, S3Call.PUT_OBJECT, S3Call.LIST_OBJECTS))
        effects = [Effect.ERROR_500, Effect.ERROR_503, Effect.RESET]
        effects += [Effect.APPLIED_500, Effect.APPLIED_RESET] if call is S3Call.PUT_OBJECT else []
        most = self.partitions if call is S3Call.LIST_OBJECTS else 8  # one listing for each chain
        return CallFault(call, self.rng.choice(effects), self.rng.randint(1, most), self.rng.choice((1, 3, 1000)))
