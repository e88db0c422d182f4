"""A broker that hangs accepts connections: where any broker can answer, the next one asked is another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

from waybill.services.kafka import transport
from waybill.services.kafka.transport import DirectConnectionManager

SERVERS = ["127.0.0.1:9", "127.0.0.1:10", "127.0.0.1:11"]


@pytest.fixture
def net() -> Iterator[NetworkSelector]:
    selector = NetworkSelector(client_id="t")
    yield selector
    selector.close()


def manager_of(net: NetworkSelector, servers: list[str]) -> DirectConnectionManager:
    manager = DirectConnectionManager(net, bootstrap_servers=servers, socket_connection_setup_timeout_ms=10_000)
    known = manager.cluster.bootstrap_brokers()
    manager.cluster.brokers = lambda: known  # as after the first metadata
    return manager


def names(servers: list[Any]) -> set[str]:
    return {each.node_id for each in servers}


def test_silent_broker_is_avoided_until_it_answers_or_all_are_silent(net: NetworkSelector) -> None:
    manager = manager_of(net, SERVERS)
    manager.note_answer("bootstrap-1", answered=False)
    assert {manager.least_loaded_node() for _ in range(50)} == {"bootstrap-0", "bootstrap-2"}
    assert names(manager.cluster.bootstrap_brokers()) == {"bootstrap-0", "bootstrap-2"}
    for node_id in ("bootstrap-0", "bootstrap-2"):
        manager.note_answer(node_id, answered=False)
    assert len(names(manager.cluster.bootstrap_brokers())) == 3
    assert manager.least_loaded_node() is not None
    manager.note_answer("bootstrap-1", answered=True)
    assert {manager.least_loaded_node() for _ in range(50)} == {"bootstrap-1"}


def test_silent_broker_is_asked_again_after_a_while(net: NetworkSelector, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = manager_of(net, SERVERS[:2])
    manager.note_answer("bootstrap-0", answered=False)
    monkeypatch.setattr(transport, "_AVOIDED_SECONDS", 0.0)
    assert {manager.least_loaded_node() for _ in range(50)} == {"bootstrap-0", "bootstrap-1"}


@pytest.mark.parametrize(("servers", "expected_ms"), [(SERVERS, 2_500), (SERVERS[:1], 9_000)])
def test_first_connection_leaves_time_for_the_other_servers(
    net: NetworkSelector, monkeypatch: pytest.MonkeyPatch, servers: list[str], expected_ms: float
) -> None:
    given: list[float] = []
    monkeypatch.setattr(
        KafkaConnectionManager, "get_connection", lambda _, __, timeout_ms, **___: given.append(timeout_ms)
    )
    manager_of(net, servers).get_connection("bootstrap-0", timeout_ms=9_000)
    assert given == [expected_ms]
