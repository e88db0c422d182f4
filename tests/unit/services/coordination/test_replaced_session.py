"""A server that answers a reconnect with another session: the locks are lost, although the client is connected."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry

from waybill.base.errors import CoordinationUnavailable, SessionReplaced
from waybill.config.connections import ZooKeeperEndpoint
from waybill.config.names import TopicPartition
from waybill.services.coordination import Coordinator, ZooKeeperSession
from waybill.services.coordination.nodes import CommittedOffset
from waybill.services.coordination.paths import ZkPaths

TP = TopicPartition("flights", 3)


class Keeper:
    """kazoo's client, as far as a session uses it, of a server whose session a test changes."""

    def __init__(self, session_id: int) -> None:
        self.client_id = (session_id, b"password")
        self.calls: list[str] = []
        self.during: Any = None
        """What happens at the next call: then it is lost with the connection."""
        self._retry = KazooRetry(max_tries=3, delay=0, max_jitter=0, sleep_func=lambda _: None)

    def retry(self, call: Any, *arguments: Any, **options: Any) -> Any:
        return self._retry.copy()(call, *arguments, **options)

    def Lock(self, path: str) -> Any:  # noqa: N802
        return SimpleNamespace(acquire=lambda **_: True, release=lambda: self.calls.append(f"release {path}"))

    def set(self, path: str, _: bytes, version: int) -> Any:
        return self._answer(f"set {path}", SimpleNamespace(version=version + 1))

    def get(self, path: str) -> Any:
        return self._answer(f"get {path}", (b"{}", SimpleNamespace(version=1)))

    def _answer(self, call: str, answer: Any) -> Any:
        if self.during is not None:
            happens, self.during = self.during, None
            happens()
            raise ConnectionLoss
        self.calls.append(call)
        return answer


def session_with(keeper: Keeper) -> ZooKeeperSession:
    session = ZooKeeperSession(ZooKeeperEndpoint(hosts="keeper:2181"), timedelta(seconds=10))
    session.client = keeper  # type: ignore[assignment]
    session._watch(KazooState.CONNECTED)
    return session


def reconnect(session: ZooKeeperSession, keeper: Keeper, session_id: int) -> None:
    session._watch(KazooState.SUSPENDED)
    keeper.client_id = (session_id, b"password")
    session._watch(KazooState.CONNECTED)


def test_reconnect_to_the_same_session_keeps_its_locks() -> None:
    keeper = Keeper(0x1A)
    session = session_with(keeper)
    reconnect(session, keeper, 0x1A)
    session.check()
    assert not session.lost


def test_another_session_stops_the_lane_with_a_named_error() -> None:
    keeper = Keeper(0x1A)
    session = session_with(keeper)
    coordinator = Coordinator(session, ZkPaths("/waybill", "s", 1))
    with coordinator.lock(TP):
        reconnect(session, keeper, 0x2B)
        with pytest.raises(SessionReplaced, match=r"0x1a at keeper:2181 was replaced by 0x2b.*its locks are gone"):
            coordinator.check_session()
        with pytest.raises(SessionReplaced):
            coordinator.write_committed(TP, CommittedOffset(committed_offset=7), 3)
    assert not [call for call in keeper.calls if call.startswith("set")]
    with pytest.raises(CoordinationUnavailable), coordinator.lock(TP):
        pass
    reconnect(session, keeper, 0x1A)
    assert session.lost, "the first session does not come back"


@pytest.mark.parametrize("write", [True, False])
def test_call_that_was_under_way_is_not_repeated_in_another_session(write: bool) -> None:
    keeper = Keeper(0x1A)
    session = session_with(keeper)
    keeper.during = lambda: reconnect(session, keeper, 0x2B)
    with pytest.raises(SessionReplaced):
        session.write("/node", b"x", 4) if write else session.get("/node")
    assert keeper.calls == []


def test_call_is_repeated_in_the_same_session() -> None:
    keeper = Keeper(0x1A)
    session = session_with(keeper)
    keeper.during = lambda: reconnect(session, keeper, 0x1A)
    assert session.write("/node", b"x", 4) == 5
