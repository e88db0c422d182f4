"""The scenario of a seed: a topic, producers, schedulers, and the injected faults. This module only draws it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

from chaos.producers import ProducerKind, ProducerPlan
from chaos.s3_proxy import CallFault, Effect, S3Call
from waybill.base import failpoints

PART_BYTES = 5 << 20
"""The smallest part that S3 takes."""

REFUSED = "ingest.object_refused"
INSPECTED = "ingest.object_inspected"
FAILPOINTS = tuple(name for name in failpoints.INGEST if name not in (REFUSED, INSPECTED))
"""Those that every lane with something to do passes; the two of an adoption are drawn with a reason for one."""

FREEZE_AT = ("ingest.object_cut", "ingest.committed_read", "ingest.fetched", "ingest.object_created")

_KIB = 1 << 10
_MIB = 1 << 20


class LaneAction(StrEnum):
    """The actions of a failpoint on a lane."""

    KILL = "kill"
    FREEZE = "stop"
    """SIGSTOP past the session's timeout, while others go on; then SIGCONT: the zombie."""


@dataclass(frozen=True)
class LaneFault:
    """A fault at the `nth` pass of a failpoint. One lane after the other is armed with it until it happens."""

    failpoint: str
    action: LaneAction
    nth: int = 1

    @property
    def text(self) -> str:
        """For `WAYBILL_FAILPOINTS`."""
        return f"{self.failpoint}={self.action}@{self.nth}"


class ServerFault(StrEnum):
    """The fault of a server, which affects every scenario of a round."""

    NONE = "none"
    ZOOKEEPER_RESTARTED = "ZooKeeper killed and restarted"
    ZOOKEEPER_WIPED = "ZooKeeper killed, wiped and restarted"
    LEADER_KILLED = "Kafka leader killed and restarted"
    BROKER_FROZEN = "Kafka broker frozen"
    S3_RESTARTED = "S3 killed and restarted"


@dataclass(frozen=True)
class Scenario:
    """See the module's docstring."""

    seed: int
    partitions: int = 1
    lanes: int = 1
    schedulers: int = 1
    """How many plan and run the stream's lanes at the same time."""
    max_bytes: tuple[int, ...] = (64 * _KIB,)
    """`upload.max_bytes`: lanes use these values in turn, as if an operator changed the config."""
    max_age_seconds: int = 0
    budget_seconds: int = 5
    part_bytes: int | None = None
    fetch_bytes: int | None = None
    s3_attempts: int | None = None
    delimiter: str = ""
    """The stream's format is `text` with this delimiter; none: `kafka`."""
    producers: tuple[ProducerPlan, ...] = ()
    lane_faults: tuple[LaneFault, ...] = ()
    call_faults: tuple[CallFault, ...] = ()
    session_seconds: int = 2
    """`zookeeper.session_timeout`; 2 is the least that the stack's ZooKeeper grants."""
    kafka_frozen_seconds: float = 3.0
    backlog_first: bool = False
    """Lanes begin when the producers have written what they have to."""
    faults_within_seconds: float = 7.0
    """After this time, the scenario no longer waits for faults."""
    guard: bool = True
    """False: S3 ignores `If-None-Match`. Then the harness must find faults."""


def draw(seed: int, *, guard: bool = True) -> Scenario:
    """The scenario of a seed: the same for ever, unless this file changes."""
    rng = random.Random(f"waybill {seed}")
    multipart = rng.random() < 0.15
    partitions = rng.choice((1, 1, 2, 3))
    return Scenario(
        seed=seed,
        partitions=partitions,
        lanes=rng.randint(1, partitions),
        schedulers=rng.choice((1, 1, 2)),
        max_bytes=_max_bytes(rng, multipart=multipart),
        max_age_seconds=rng.choice((0, 0, 0, 1)),
        budget_seconds=rng.choice((1, 3, 5)),
        session_seconds=rng.choice((2, 4)),
        part_bytes=PART_BYTES if multipart else None,
        fetch_bytes=rng.choice((None, 2 * _MIB) if multipart else (None, 16 * _KIB, 64 * _KIB)),
        s3_attempts=rng.choice((1, 1, 2, 5)),
        producers=tuple(_producers(rng, partitions, multipart=multipart)),
        lane_faults=(lane_faults := tuple(_lane_faults(rng))),
        call_faults=(*_reasons_to_refuse(lane_faults), *_with_reasons_to_ask(_call_faults(rng, multipart=multipart))),
        guard=guard,
    )


def draw_server_fault(round_number: int) -> ServerFault:
    """What hits the scenarios of a round."""
    rng = random.Random(f"waybill round {round_number}")
    weights = {
        ServerFault.NONE: 8,
        ServerFault.ZOOKEEPER_RESTARTED: 4,
        ServerFault.ZOOKEEPER_WIPED: 4,
        ServerFault.LEADER_KILLED: 4,
        ServerFault.BROKER_FROZEN: 2,
        ServerFault.S3_RESTARTED: 3,
    }
    return rng.choices(list(weights), list(weights.values()))[0]


def _with_reasons_to_ask(faults: list[CallFault]) -> list[CallFault]:
    """Objects are looked up and read when ZooKeeper does not know where the chain ends: so it forgets that."""
    asking = sum(fault.call in (S3Call.GET_OBJECT, S3Call.HEAD_OBJECT, S3Call.LIST_OBJECTS) for fault in faults)
    forget = [CallFault(S3Call.PUT_OBJECT, Effect.DELETE_NODES, nth=2 * n + 2) for n in range(asking)]
    return [*faults, *forget]


def _reasons_to_refuse(lane_faults: tuple[LaneFault, ...]) -> list[CallFault]:
    """A lane is refused when the answer to its first try is lost: so it meets that failpoint."""
    refused = sum(fault.failpoint == REFUSED for fault in lane_faults)
    return [CallFault(S3Call.PUT_OBJECT, Effect.APPLIED_RESET, nth=2 * n + 1, times=2) for n in range(refused)]


def _max_bytes(rng: random.Random, *, multipart: bool) -> tuple[int, ...]:
    sizes = (6 * _MIB, 11 * _MIB, 16 * _MIB) if multipart else (4 * _KIB, 16 * _KIB, 64 * _KIB, 256 * _KIB)
    return tuple(rng.sample(sizes, rng.choice((1, 1, 2))))


def _producers(rng: random.Random, partitions: int, *, multipart: bool) -> list[ProducerPlan]:
    kinds = rng.sample(list(ProducerKind), rng.randint(1, 1 if multipart else 3))
    plans = []
    for number, kind in enumerate(kinds):
        burst = rng.randint(8, 16) if multipart else rng.choice((10, 40, 100))
        plans.append(
            ProducerPlan(
                name=f"{kind}-{number}",
                kind=kind,
                messages=rng.randint(120, 200) if multipart else rng.randint(200, 2000),
                burst=burst,
                pause_seconds=rng.choice((0.02, 0.05, 0.1)),
                value_bytes=120_000 if multipart else rng.choice((20, 100, 600)),
                codec="none" if multipart else rng.choice(("none", "gzip", "snappy", "lz4", "zstd")),
                batch_messages=rng.choice((1, 8)) if multipart else rng.choice((5, 20, 100)),
                aborted_share=rng.choice((0.1, 0.3, 0.6)),
                partitions=tuple(range(partitions)),
                seed=rng.getrandbits(32),
            )
        )
    return plans


def _lane_faults(rng: random.Random) -> list[LaneFault]:
    faults: list[LaneFault] = []
    for _ in range(rng.randint(1, 4)):
        if rng.random() < 0.3:
            faults.append(LaneFault(rng.choice(FREEZE_AT), LaneAction.FREEZE, rng.choice((1, 1, 2))))
            continue
        failpoint = rng.choice((*FAILPOINTS, REFUSED))
        faults.append(LaneFault(failpoint, LaneAction.KILL, 1 if failpoint == REFUSED else rng.choice((1, 1, 2))))
        if failpoint == "ingest.object_created" and rng.random() < 0.5:
            faults.append(LaneFault(INSPECTED, LaneAction.KILL))
    return faults


_ONE_CALL = (S3Call.PUT_OBJECT, S3Call.LIST_OBJECTS, S3Call.GET_OBJECT, S3Call.HEAD_OBJECT)
_MULTIPART = (
    S3Call.CREATE_MULTIPART_UPLOAD,
    S3Call.UPLOAD_PART,
    S3Call.COMPLETE_MULTIPART_UPLOAD,
    S3Call.ABORT_MULTIPART_UPLOAD,
)
_BEFORE = (Effect.ERROR_500, Effect.ERROR_503, Effect.SLOW, Effect.RESET)
_AFTER = (Effect.APPLIED_500, Effect.APPLIED_RESET, Effect.NO_ANSWER)
_ELSEWHERE = (
    Effect.CUT_ZOOKEEPER,
    Effect.FREEZE_ZOOKEEPER,
    Effect.EXPIRE_SESSION,
    Effect.DELETE_NODES,
    Effect.CUT_KAFKA,
    Effect.FREEZE_KAFKA,
    Effect.CUT_FETCH,
)


def _call_faults(rng: random.Random, *, multipart: bool) -> list[CallFault]:
    uploads = S3Call.UPLOAD_PART if multipart else S3Call.PUT_OBJECT
    faults = []
    for _ in range(rng.randint(0, 5)):
        nth, times = rng.randint(1, 2 if multipart else 6), rng.choice((1, 1, 2))
        if rng.random() < 0.35:
            faults.append(CallFault(uploads, rng.choice(_ELSEWHERE), nth))
            continue
        call = rng.choice(_ONE_CALL + _MULTIPART if multipart else _ONE_CALL)
        if call not in (S3Call.PUT_OBJECT, S3Call.UPLOAD_PART):
            nth = 1
        faults.append(CallFault(call, rng.choice(_effects(call)), nth, times))
    return faults


def _effects(call: S3Call) -> tuple[Effect, ...]:
    if call is S3Call.GET_OBJECT:
        return (*_BEFORE, Effect.NO_ANSWER, Effect.CUT_BODY)
    return (*_BEFORE, Effect.NO_ANSWER) if call in (S3Call.HEAD_OBJECT, S3Call.LIST_OBJECTS) else _BEFORE + _AFTER
