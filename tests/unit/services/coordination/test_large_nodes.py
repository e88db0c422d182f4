"""No document outgrows a node of ZooKeeper: large ones are gzipped, and one that still is too large is named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from waybill.base.errors import ConfigError, DocumentDamaged, NodeTooLarge
from waybill.base.metering import Tally
from waybill.config.connections import ZooKeeperEndpoint
from waybill.interfaces.cli.targets import make_decision
from waybill.services.coordination import GroupProblem, GroupProblems, UsageStore, ZooKeeperSession
from waybill.services.coordination.nodes import NODE
from waybill.services.coordination.session import MOST_NODE_BYTES


class Nodes:
    """The nodes of a session, in memory, with ZooKeeper's limit."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[bytes, int]] = {}

    def get(self, path: str) -> tuple[bytes, int] | None:
        return self.nodes.get(path)

    def get_all(self, paths: Any) -> dict[str, tuple[bytes, int]]:
        return {path: self.nodes[path] for path in paths if path in self.nodes}

    def children(self, path: str) -> list[str]:
        return sorted({name.removeprefix(f"{path}/").split("/")[0] for name in self.nodes if name.startswith(path)})

    def children_of_all(self, paths: Any) -> dict[str, list[str]]:
        return {path: self.children(path) for path in paths}

    def write_once(self, path: str, data: bytes, version: int) -> None:
        assert len(data) <= MOST_NODE_BYTES
        self.nodes[path] = data, version + 1

    def put(self, path: str, data: bytes, _what: str) -> None:
        self.write_once(path, data, -1)


def test_usage_and_problems_of_ten_thousand_streams_fit_into_a_node() -> None:
    nodes: Any = Nodes()
    tallies = {
        f"stream_of_orders_{number}": Tally(
            {"PutObject": number, "GetObject": 7 * number, "ListObjectsV2": 3},  # type: ignore[arg-type]
            number * 1_000_003,
            number,
            {"ingest_lane": number / 7, "ingest_s3": number / 3},
            number * 13,
        )
        for number in range(1, 10_001)
    }
    store = UsageStore(nodes, "waybill", lambda: 1_800_000_000)
    store.add("ingest-0", tallies)
    store.add("ingest-0", {"stream_of_orders_1": Tally(messages=1)})
    found = {each.stream: each.tally for each in store.today()}
    assert len(found) == 10_000
    assert found["stream_of_orders_1"].messages == 14
    problems = [
        GroupProblem(f"stream_{number}", "RetentionGap", f"flights_{number}/3: gone") for number in range(10_000)
    ]
    GroupProblems("waybill", "default", {each.key: each for each in problems}).write(nodes)
    assert len(GroupProblems.read(nodes, "waybill", "default").known) == 10_000


def test_small_document_stays_plain_and_a_damaged_one_is_named() -> None:
    assert json.loads(NODE.write({"a": 1})) == {"v": 1, "a": 1}
    large = NODE.write({"a": "x" * 300_000})
    assert len(large) < 1_000
    assert NODE.parse("/n", large, dict)["a"] == "x" * 300_000
    for content in (large[:-20], b"\x1f\x8b", large[:10] + b"\xff" + large[11:]):
        with pytest.raises(DocumentDamaged, match="ZooKeeper node /n"):
            NODE.parse("/n", content, dict)


def test_document_that_does_not_fit_is_named_before_it_is_sent() -> None:
    session = ZooKeeperSession(ZooKeeperEndpoint(hosts="127.0.0.1:9"))
    for write in (
        lambda data: session.write("/n", data, 0),
        lambda data: session.write_once("/n", data, 0),
        lambda data: session.put("/n", data, "write it"),
    ):
        with pytest.raises(NodeTooLarge, match="ZooKeeper node /n: 1,000,001 bytes"):
            write(b"x" * 1_000_001)


@pytest.mark.parametrize("text", ["x" * 4_001, "caf\udce9", "a\0b"])
def test_reason_that_cannot_be_stored_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--reason"):
        make_decision(text, None)
    with pytest.raises(ConfigError, match="--by"):
        make_decision("a reason", text)
