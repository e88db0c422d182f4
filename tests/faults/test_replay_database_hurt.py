"""The connection to PostgreSQL is cut at any byte, or the server is down for some time: no replay request is lost."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import catalog_servers
import pytest
import replay_databases as helpers
from chaos.loop import ProxyLoop
from chaos.tcp_proxy import TcpProxy
from replay_databases import NOW, TIMEOUT_MS, wanted
from sqlalchemy import Connection as SqlConnection
from sqlalchemy import delete, update

from waybill.config.connections import Connection
from waybill.replay.requests.database import Database, locks, rejected, requesters, requests
from waybill.replay.requests.migrations import migrate
from waybill.replay.requests.states import RequestEvent, RequestState
from waybill.replay.requests.stored import Progress, RejectedMessage

pytestmark = pytest.mark.faults

REQUESTS = 4


@dataclass(frozen=True)
class Hurt:
    """A database behind a proxy, and the same without it."""

    proxies: ProxyLoop
    proxy: TcpProxy
    hurt: Connection
    direct: Database

    def cut_after(self, count: int, on_cut: Callable[[], None]) -> None:
        self.proxies.loop.call_soon_threadsafe(self.proxy.cut_after, count, on_cut)


@pytest.fixture(scope="module")
def server() -> Iterator[Hurt]:
    with catalog_servers.postgres() as address, ProxyLoop() as proxies:
        connection = helpers.postgres_connection(address)
        assert connection.port is not None
        proxy = TcpProxy(proxies, "127.0.0.1", connection.port)
        with helpers.open_database(connection) as direct:
            migrate(direct)
            yield Hurt(proxies, proxy, connection.model_copy(update={"port": proxy.port}), direct)
        proxy.close()


@pytest.fixture
def hurt(server: Hurt) -> Hurt:
    for table in (requests, rejected, requesters):
        server.direct.write(lambda connection, table=table: connection.execute(delete(table)))  # type: ignore[misc]
    return server


def _serve_all(database: Database) -> None:
    """Create requests and serve them, as a requester and a worker do."""
    queue, claims = helpers.queue_of(database), helpers.claims_of(database)
    for number in range(REQUESTS):
        queue.create(wanted(), "ada", NOW + number)
    now = NOW
    while any(not stored.state.is_final for stored in queue.page()):
        claim = claims.claim("w1", now)
        # The answer to a claim may be lost. Then the request is free again after the timeout.
        now += 1 if claim else TIMEOUT_MS
        if claim is None:
            continue
        cursor = 0 if claim.progress.cursor is None else claim.progress.cursor["next"]
        for step in range(cursor, 3):
            messages = [RejectedMessage("flights", 0, step, "400")]
            claims.record_progress(claim, now, Progress({"next": step + 1}, step + 1, 0, step / 3), messages)
        claims.finish(claim, now, RequestEvent.COMPLETE)


def _check_all_served_once(database: Database) -> None:
    queue = helpers.queue_of(database)
    page = queue.page()
    assert [stored.state for stored in page] == [RequestState.COMPLETED] * REQUESTS
    for stored in page:
        assert (stored.progress.found, stored.rejected) == (3, 3)
        assert [each.offset for each in queue.rejected_of(stored.request.id)] == [0, 1, 2]


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(3, 13))])
def test_connections_that_are_cut_again_and_again_lose_and_repeat_nothing(hurt: Hurt, seed: int) -> None:
    randomness = random.Random(seed)
    cuts = 0

    def cut_again() -> None:
        nonlocal cuts
        cuts += 1
        # Enough bytes to log in and to do something: else no connection would ever be made.
        hurt.proxy.cut_after(randomness.randrange(2_000, 12_000), cut_again)

    hurt.cut_after(randomness.randrange(2_000, 6_000), cut_again)
    try:
        with helpers.open_database(hurt.hurt) as database:
            _serve_all(database)
    finally:
        hurt.proxies.loop.call_soon_threadsafe(hurt.proxy.heal)
    assert cuts >= 3
    _check_all_served_once(hurt.direct)


@pytest.mark.parametrize("count", [1, 30, 500, 5_000])
def test_a_connection_that_is_cut_once_at_a_byte_changes_nothing(hurt: Hurt, count: int) -> None:
    cut = threading.Event()
    hurt.cut_after(count, cut.set)
    with helpers.open_database(hurt.hurt) as database:
        _serve_all(database)
    assert cut.is_set()
    _check_all_served_once(hurt.direct)


def test_a_server_that_does_not_answer_for_a_while_is_waited_for(hurt: Hurt) -> None:
    with helpers.open_database(hurt.hurt) as database:
        queue = helpers.queue_of(database)
        queue.create(wanted(), "ada", NOW)
        hurt.proxies.loop.call_soon_threadsafe(hurt.proxy.hold)
        timer = threading.Timer(1.0, lambda: hurt.proxies.loop.call_soon_threadsafe(hurt.proxy.heal))
        timer.start()
        queue.create(wanted(), "ada", NOW + 1)
        timer.join()
    assert len(helpers.queue_of(hurt.direct).page()) == 2


def test_a_worker_that_is_frozen_within_a_transaction_does_not_hold_its_locks(
    hurt: Hurt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waybill.replay.requests.database._IDLE_SECONDS", 1)
    locked = threading.Event()
    tries = 0

    def frozen(connection: SqlConnection) -> None:
        nonlocal tries
        tries += 1
        connection.execute(update(locks).values(taken=locks.c.taken + 1))
        if tries == 1:
            locked.set()
            time.sleep(2.5)

    thread = threading.Thread(target=hurt.direct.write, args=(frozen,))
    thread.start()
    locked.wait()
    begin = time.monotonic()
    helpers.queue_of(hurt.direct).create(wanted(), "ada", NOW)
    assert time.monotonic() - begin < 2
    thread.join()
    assert tries == 2
