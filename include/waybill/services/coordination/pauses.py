"""Pauses: a person stops a stream's scheduled work for a while. Each decision is recorded: who, when, why.

A paused stream has no lane and no Spark task. Its topics keep their messages in Kafka until the stream is resumed, so
Kafka's retention limits how long a pause of ingest may last. Reads, `verify` and manual retries work during a pause.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from waybill.base.errors import PauseRefused
from waybill.config.names import Stage
from waybill.services.coordination.nodes import node_document
from waybill.services.coordination.paths import pauses_path
from waybill.services.coordination.session import NodeConflict, ZooKeeperSession

_DOCUMENT = node_document("no stream is paused without it")
_KEPT_DECISIONS = 50
"""The node keeps the latest decisions. ZooKeeper's nodes must stay far below 1 MB."""


class PauseAction(StrEnum):
    """The decisions about a pause."""

    PAUSE = "pause"
    RESUME = "resume"


@dataclass(frozen=True, slots=True)
class Pause:
    """One decision to pause or resume stages of a stream."""

    action: PauseAction
    stages: frozenset[Stage]
    by: str
    at_ms: int
    """Epoch ms."""
    reason: str

    def to_fields(self) -> dict[str, Any]:
        """Return the JSON object in the node."""
        stages = sorted(self.stages)
        return {"action": self.action, "stages": stages, "by": self.by, "at": self.at_ms, "reason": self.reason}

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Pause:
        """Return the decision of a JSON object. Raises `KeyError`, `TypeError` or `ValueError`."""
        stages = frozenset(Stage(stage) for stage in fields["stages"])
        return cls(PauseAction(fields["action"]), stages, str(fields["by"]), int(fields["at"]), str(fields["reason"]))


@dataclass(frozen=True, slots=True)
class StreamPauses:
    """All recorded decisions about one stream, oldest first."""

    decisions: tuple[Pause, ...] = ()
    version: int = -1
    """The node's version; -1 if there is none."""

    def active(self) -> dict[Stage, Pause]:
        """Return the paused stages, each with the decision that paused it."""
        active: dict[Stage, Pause] = {}
        for decision in self.decisions:
            for stage in decision.stages:
                if decision.action is PauseAction.RESUME:
                    active.pop(stage, None)
                else:
                    active.setdefault(stage, decision)
        return active

    def decide(self, session: ZooKeeperSession, root: str, stream: str, decision: Pause) -> StreamPauses:
        """Record a decision, and return all decisions.

        Raises `PauseRefused` if nothing would change, or if another person has decided since `self` was read.
        """
        paused = self.active().keys()
        changes = decision.stages - paused if decision.action is PauseAction.PAUSE else decision.stages & paused
        if not changes:
            state = "paused already" if decision.action is PauseAction.PAUSE else "not paused"
            raise PauseRefused(f"{stream}: {', '.join(sorted(decision.stages))}: {state}. `waybill streams` shows all")
        decisions = _without_old((*self.decisions, decision))
        path = pauses_path(root, stream)
        try:
            version = session.write(
                path, _DOCUMENT.write({"decisions": [each.to_fields() for each in decisions]}), self.version
            )
        except NodeConflict:
            raise PauseRefused(
                f"{stream}: another decision was recorded at the same time. Look at `waybill streams`, then repeat"
            ) from None
        return StreamPauses(decisions, version)


def _without_old(decisions: tuple[Pause, ...]) -> tuple[Pause, ...]:
    """Return the latest decisions, and all that paused a stage which is still paused."""
    active = set(StreamPauses(decisions).active().values())
    latest = set(decisions[-_KEPT_DECISIONS:])
    return tuple(each for each in decisions if each in latest or each in active)


def read_pauses(session: ZooKeeperSession, root: str, streams: Iterable[str]) -> dict[str, StreamPauses]:
    """Return the decisions about each stream. Raises `DocumentTooNew` or `DocumentDamaged` for a node."""
    paths = {stream: pauses_path(root, stream) for stream in streams}
    nodes = session.get_all(paths.values())
    return {stream: _parse(nodes[path], path) if path in nodes else StreamPauses() for stream, path in paths.items()}


def _parse(node: tuple[bytes, int], where: str) -> StreamPauses:
    data, version = node
    decisions = _DOCUMENT.parse(where, data, lambda fields: tuple(map(Pause.from_fields, fields["decisions"])))
    return StreamPauses(decisions, version)
