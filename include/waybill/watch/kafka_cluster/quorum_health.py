"""The promise about the controllers of the quorum, and since when one of them is behind.

A controller that has just become the leader of the quorum does not know yet when the others had the whole log, and
during a failover no controller leads. So both states count from the first watch that saw them, and break the promise
after the limit.
"""

from __future__ import annotations

from collections.abc import Mapping

from waybill.config.models.kafka_promises import Controllers, KafkaPromiseName
from waybill.config.models.quantities import rough_duration
from waybill.services.kafka.controllers import Quorum
from waybill.watch.incidents.finding import Finding
from waybill.watch.kafka_cluster.kafka_finding import kafka_finding, unknown_finding

QuorumTroubles = Mapping[str, int]
"""Since when a watch has seen (epoch ms) that no controller leads (key ''), or that the leader does not know the
position of a controller (key: its node id)."""
_NO_LEADER = ""


def follow_quorum(troubles: QuorumTroubles, quorum: Quorum | None, error: str, now_ms: int) -> dict[str, int]:
    """Return the troubles after a watch that read this quorum, or that got this error.

    Without a quorum and an error, the user is not allowed to describe the quorum, or the cluster has none: then nothing
    is stored.
    """
    if error:
        # The lag of the controllers could not be read: the earlier entries stay.
        return {**troubles, _NO_LEADER: troubles.get(_NO_LEADER, now_ms)}
    unknown = [] if quorum is None else [str(each) for each, time_ms in quorum.caught_up_ms.items() if time_ms < 0]
    return {voter: troubles.get(voter, now_ms) for voter in unknown}


def controllers_finding(
    settings: Controllers, quorum: Quorum | None, error: str, *, hidden: bool, troubles: QuorumTroubles, now_ms: int
) -> Finding:
    """Return how far the controllers are behind the leader of the quorum.

    `hidden`: the user is not allowed to describe the quorum. `troubles` already include `quorum` and `error`.
    """
    name, limit_ms = KafkaPromiseName.CONTROLLERS, int(settings.limit.total_seconds() * 1000)
    limit = f"at most {rough_duration(limit_ms / 1000)}"
    if error:
        since_ms = troubles.get(_NO_LEADER, now_ms)
        if now_ms - since_ms <= limit_ms:
            return unknown_finding(name, settings, f"no controller leads the quorum: {error}", limit=limit)
        detail = f"no controller leads the quorum, so Kafka elects no leaders: {error}"
        return kafka_finding(
            name,
            settings,
            now_ms,
            broken=True,
            figure="no controller leads",
            limit=limit,
            detail=detail,
            since_ms=since_ms,
        )
    if quorum is None:
        if hidden:
            return unknown_finding(name, settings, "the user may not describe the quorum", limit=limit)
        return kafka_finding(name, settings, now_ms, broken=False, figure="ZooKeeper elects", limit=limit)
    return _behind(settings, quorum, troubles, now_ms, limit)


def _behind(settings: Controllers, quorum: Quorum, troubles: QuorumTroubles, now_ms: int, limit: str) -> Finding:
    name, limit_ms = KafkaPromiseName.CONTROLLERS, int(settings.limit.total_seconds() * 1000)
    newest = max(quorum.caught_up_ms.values(), default=-1)
    lags_ms = {voter: max(0, newest - time_ms) for voter, time_ms in quorum.caught_up_ms.items() if time_ms >= 0}
    unknown = {voter: troubles.get(str(voter), now_ms) for voter in quorum.caught_up_ms if voter not in lags_ms}
    late = {voter: now_ms - lag + limit_ms for voter, lag in lags_ms.items() if lag > limit_ms}
    behind = late | {voter: since for voter, since in unknown.items() if now_ms - since > limit_ms}
    if not behind and (unknown or not lags_ms):
        waiting = ", ".join(map(str, sorted(unknown))) or "at all"
        detail = f"the leader of the quorum does not know yet how far controller {waiting} is"
        return unknown_finding(name, settings, detail, limit=limit)
    worst_ms = max(lags_ms.values(), default=0)
    return kafka_finding(
        name,
        settings,
        now_ms,
        broken=bool(behind),
        figure="not caught up" if behind and not late else rough_duration(worst_ms / 1000),
        limit=limit,
        detail=f"controller {', '.join(map(str, sorted(behind)))} of {len(quorum.voters)} is behind the leader of the "
        "quorum",
        value=worst_ms / 1000,
        since_ms=min(behind.values(), default=None),
    )
