"""Decisions to pause and resume a stream: which stages they pause, and what the node keeps."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kazoo.exceptions import BadVersionError

from waybill.base.errors import DocumentDamaged, DocumentTooNew, PauseRefused
from waybill.config.names import Stage
from waybill.services.coordination.pauses import Pause, PauseAction, StreamPauses, read_pauses


class Nodes:
    """The nodes of a session, in memory."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[bytes, int]] = {}

    def get_all(self, paths: Any) -> dict[str, tuple[bytes, int]]:
        return {path: self.nodes[path] for path in paths if path in self.nodes}

    def write(self, path: str, data: bytes, version: int) -> int:
        if self.nodes.get(path, (b"", -1))[1] != version:
            raise BadVersionError
        self.nodes[path] = data, version + 1
        return version + 1


def decision(action: str, *stages: Stage, by: str = "ada", at_ms: int = 1) -> Pause:
    return Pause(PauseAction(action), frozenset(stages or Stage), by, at_ms, "a reason")


def test_a_stage_is_paused_from_its_pause_until_its_resumption() -> None:
    nodes: Any = Nodes()
    pauses = StreamPauses().decide(nodes, "waybill", "s", decision("pause", Stage.INGEST, Stage.DEDUP))
    assert pauses.active().keys() == {Stage.INGEST, Stage.DEDUP}
    pauses = pauses.decide(nodes, "waybill", "s", decision("resume", Stage.INGEST, by="grace"))
    assert {stage: pause.by for stage, pause in pauses.active().items()} == {Stage.DEDUP: "ada"}
    assert read_pauses(nodes, "waybill", ["s", "t"]) == {"s": pauses, "t": StreamPauses()}


def test_a_second_pause_keeps_the_decision_that_paused_a_stage_first() -> None:
    nodes: Any = Nodes()
    pauses = StreamPauses().decide(nodes, "waybill", "s", decision("pause", Stage.INGEST, by="ada"))
    pauses = pauses.decide(nodes, "waybill", "s", decision("pause", by="grace"))
    assert pauses.active()[Stage.INGEST].by == "ada"
    assert pauses.active()[Stage.PARTITION].by == "grace"


@pytest.mark.parametrize(("action", "state"), [("pause", "paused already"), ("resume", "not paused")])
def test_a_decision_that_changes_nothing_is_refused(action: str, state: str) -> None:
    nodes: Any = Nodes()
    pauses = StreamPauses()
    if action == "pause":
        pauses = pauses.decide(nodes, "waybill", "s", decision("pause"))
    with pytest.raises(PauseRefused, match=state):
        pauses.decide(nodes, "waybill", "s", decision(action))


def test_of_two_decisions_at_the_same_time_the_second_is_refused() -> None:
    nodes: Any = Nodes()
    read = StreamPauses()
    read.decide(nodes, "waybill", "s", decision("pause", Stage.INGEST))
    with pytest.raises(PauseRefused, match="another decision was recorded at the same time"):
        read.decide(nodes, "waybill", "s", decision("pause", Stage.DEDUP))


def test_the_node_keeps_the_last_decisions_and_all_that_still_pause_a_stage() -> None:
    nodes: Any = Nodes()
    pauses = StreamPauses().decide(nodes, "waybill", "s", decision("pause", Stage.MAINTENANCE, by="first"))
    for number in range(60):
        action = "resume" if number % 2 else "pause"
        pauses = pauses.decide(nodes, "waybill", "s", decision(action, Stage.INGEST, at_ms=number))
    assert len(pauses.decisions) == 51
    assert pauses.active() == {Stage.MAINTENANCE: pauses.decisions[0]}


def test_damaged_and_newer_nodes_are_named() -> None:
    nodes: Any = Nodes()
    nodes.nodes["/waybill/pauses/s"] = b"{", 0
    with pytest.raises(DocumentDamaged, match=r"/waybill/pauses/s .* Delete the node: no stream is paused without it"):
        read_pauses(nodes, "waybill", ["s"])
    nodes.nodes["/waybill/pauses/s"] = json.dumps({"v": 2}).encode(), 0
    with pytest.raises(DocumentTooNew):
        read_pauses(nodes, "waybill", ["s"])
