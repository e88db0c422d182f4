"""The scenario of a seed: a Kinesis stream, its producers, splits and merges, and the faults of lanes."""

from __future__ import annotations

import random
from dataclasses import dataclass

from chaos.kinesis_proxy import KinesisEffect
from chaos.s3_proxy import CallFault, Effect, S3Call
from chaos.scenario import LaneAction, LaneFault, Scenario, ServerFault

from kinesis_chaos.producers import PutKind, PutPlan, ReshardPlan
from waybill.base import failpoints

_KIB = 1 << 10
_REFUSED, _INSPECTED = "ingest.object_refused", "ingest.object_inspected"
_LANES = tuple(name for name in failpoints.INGEST if name not in (_REFUSED, _INSPECTED, "ingest.index_created"))
_FREEZE_LANES = (
    "ingest.locked",
    "ingest.committed_read",
    "ingest.log_checked",
    "ingest.fetched",
    "ingest.object_cut",
    "ingest.object_created",
)
_ANY_CALL = (
    KinesisEffect.THROTTLED,
    KinesisEffect.ERROR_500,
    KinesisEffect.NO_BODY_500,
    KinesisEffect.CUT,
    KinesisEffect.TRUNCATED,
    KinesisEffect.EMPTY_BODY,
    KinesisEffect.NO_ANSWER,
    KinesisEffect.RESET,
)
# An answer that was given before belongs to another shard, where one proxy serves all shards: so not REPEATED.
_GET_RECORDS = (
    *_ANY_CALL,
    KinesisEffect.EXPIRED_ITERATOR,
    KinesisEffect.EXPIRED_ITERATOR,
    KinesisEffect.EMPTY_BELOW_TIP,
    KinesisEffect.UNKNOWN_FIELDS,
    KinesisEffect.NO_NEXT_ITERATOR,
)
_S3_BEFORE = (Effect.ERROR_500, Effect.ERROR_503, Effect.SLOW, Effect.RESET)
_S3_AFTER = (Effect.APPLIED_500, Effect.APPLIED_RESET, Effect.NO_ANSWER)
_ELSEWHERE = (
    Effect.DELETE_NODES,
    Effect.DELETE_NODES,
    Effect.CUT_ZOOKEEPER,
    Effect.FREEZE_ZOOKEEPER,
    Effect.EXPIRE_SESSION,
)


@dataclass(frozen=True)
class CallHurt:
    """From a time on, one effect is injected into each of the next calls of an action to Kinesis."""

    after_seconds: float
    action: str
    effects: tuple[KinesisEffect, ...]


@dataclass(frozen=True)
class KinesisScenario(Scenario):
    """See the module's docstring."""

    shards: int = 1
    """Of the stream's creation."""
    slots: int = 2
    puts: tuple[PutPlan, ...] = ()
    reshard: ReshardPlan | None = None
    plan_faults: tuple[LaneFault, ...] = ()
    """For processes that plan, which assign shards to slots."""
    kinesis_faults: tuple[CallHurt, ...] = ()
    lost_answers: int = 0
    """So many answers to producers are cut: they put the record again."""


def draw(seed: int, *, guard: bool = True) -> KinesisScenario:
    """The scenario of a seed: the same for ever, unless this file changes."""
    rng = random.Random(f"waybill kinesis {seed}")
    slots = rng.choice((1, 2, 3, 4))
    lane_faults = tuple(_lane_faults(rng))
    refused = sum(fault.failpoint == _REFUSED for fault in lane_faults)
    refusals = [CallFault(S3Call.PUT_OBJECT, Effect.APPLIED_RESET, 2 * n + 3, 2) for n in range(refused)]
    return KinesisScenario(
        seed=seed,
        shards=rng.choice((1, 1, 2, 3)),
        slots=slots,
        lanes=rng.randint(1, slots),
        schedulers=rng.choice((1, 1, 2)),
        max_bytes=tuple(rng.sample((2 * _KIB, 8 * _KIB, 64 * _KIB), rng.choice((1, 1, 2)))),
        max_age_seconds=rng.choice((0, 0, 0, 1)),
        budget_seconds=rng.choice((2, 3, 5)),
        session_seconds=rng.choice((2, 4)),
        s3_attempts=rng.choice((1, 1, 2, 5)),
        puts=tuple(_puts(rng)),
        reshard=ReshardPlan(
            changes=rng.randint(6, 14),
            pause_seconds=rng.choice((0.0, 0.1, 0.4)),
            open_shards=rng.randint(2, 5),
            newest_first=rng.choice((0.2, 0.6, 0.9)),
            seed=rng.getrandbits(32),
        ),
        lane_faults=lane_faults,
        plan_faults=tuple(_plan_faults(rng)),
        call_faults=(*refusals, *_call_faults(rng)),
        kinesis_faults=tuple(_kinesis_faults(rng)),
        lost_answers=rng.choice((0, 1, 3)),
        faults_within_seconds=9.0,
        guard=guard,
    )


def draw_server_fault(round_number: int) -> ServerFault:
    """The server fault of a round."""
    rng = random.Random(f"waybill kinesis round {round_number}")
    weights = {
        ServerFault.NONE: 4,
        ServerFault.ZOOKEEPER_RESTARTED: 2,
        ServerFault.ZOOKEEPER_WIPED: 3,
        ServerFault.S3_RESTARTED: 1,
    }
    return rng.choices(list(weights), list(weights.values()))[0]


def _puts(rng: random.Random) -> list[PutPlan]:
    return [
        PutPlan(
            name=f"{kind.name.lower()}-{number}",
            kind=kind,
            records=rng.randint(150, 600),
            keys=rng.choice((1, 3, 10, 40)),
            burst=rng.choice((3, 8, 20)),
            pause_seconds=rng.choice((0.05, 0.1, 0.2)),
            value_bytes=rng.choice((20, 80, 300)),
            seed=rng.getrandbits(32),
        )
        for number, kind in enumerate(rng.sample(list(PutKind), rng.randint(1, 3)))
    ]


def _lane_faults(rng: random.Random) -> list[LaneFault]:
    faults: list[LaneFault] = []
    for _ in range(rng.randint(1, 5)):
        if rng.random() < 0.35:
            faults.append(LaneFault(rng.choice(_FREEZE_LANES), LaneAction.FREEZE, rng.choice((1, 1, 2))))
            continue
        failpoint = rng.choice((*_LANES, _REFUSED))
        faults.append(LaneFault(failpoint, LaneAction.KILL, 1 if failpoint == _REFUSED else rng.choice((1, 1, 2))))
        if failpoint == "ingest.object_created" and rng.random() < 0.5:
            faults.append(LaneFault(_INSPECTED, LaneAction.KILL))
    return faults


def _plan_faults(rng: random.Random) -> list[LaneFault]:
    first = [LaneFault("slots.before_origin", LaneAction.KILL)] if rng.random() < 0.2 else []
    faults = []
    for _ in range(rng.randint(0, 3)):
        failpoint = rng.choice(("slots.origin_recorded", "slots.shard_assigned", "slots.assigned", "slots.copied"))
        action = LaneAction.FREEZE if rng.random() < 0.4 and "origin" not in failpoint else LaneAction.KILL
        if "origin" in failpoint:  # only the first plan of a stream passes it
            first = [LaneFault(failpoint, LaneAction.KILL)]
        else:
            faults.append(LaneFault(failpoint, action, rng.choice((1, 1, 2)) if "shard" in failpoint else 1))
    return [*first, *faults]


def _call_faults(rng: random.Random) -> list[CallFault]:
    faults = []
    for _ in range(rng.randint(1, 6)):
        nth, times = rng.randint(1, 8), rng.choice((1, 1, 2))
        if rng.random() < 0.35:
            faults.append(CallFault(S3Call.PUT_OBJECT, rng.choice(_ELSEWHERE), nth))
            continue
        call = rng.choice((S3Call.PUT_OBJECT, S3Call.PUT_OBJECT, S3Call.LIST_OBJECTS, S3Call.GET_OBJECT))
        effects = _S3_BEFORE + _S3_AFTER
        if call is S3Call.GET_OBJECT:
            effects = (*_S3_BEFORE, Effect.NO_ANSWER, Effect.CUT_BODY)
        elif call is S3Call.LIST_OBJECTS:
            effects = (*_S3_BEFORE, Effect.NO_ANSWER)
        faults.append(CallFault(call, rng.choice(effects), nth if call is S3Call.PUT_OBJECT else 1, times))
    return faults


def _kinesis_faults(rng: random.Random) -> list[CallHurt]:
    faults = []
    for _ in range(rng.randint(2, 8)):
        after = rng.uniform(0.5, 7.0)
        if rng.random() < 0.7:
            effects = tuple(rng.choice(_GET_RECORDS) for _ in range(rng.choice((1, 1, 2, 4))))
            faults.append(CallHurt(after, "GetRecords", effects))
        else:
            action = rng.choice(("ListShards", "GetShardIterator", "DescribeStreamSummary"))
            faults.append(CallHurt(after, action, (rng.choice(_ANY_CALL),)))
    return sorted(faults, key=lambda fault: fault.after_seconds)
