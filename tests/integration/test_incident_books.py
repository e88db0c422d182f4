"""The book of incidents in real ZooKeeper and S3: of any size, and through an outage of ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from archived_stream import ArchivedStream

from devstack import Stack
from waybill.config.models.alerts import Alerts
from waybill.config.models.promises import PromiseSeverity
from waybill.services.coordination import ZooKeeperSession
from waybill.services.store import Store
from waybill.watch.incidents.book_store import BookStore
from waybill.watch.incidents.finding import Finding, Verdict
from waybill.watch.incidents.incident import Acknowledgement, IncidentBook, Notification
from waybill.watch.incidents.rules import acknowledge, advance, claim, settle

pytestmark = pytest.mark.integration

NOW = 1_800_000_000_000
ALERTS = Alerts.model_validate({"channels": {"pager": {"type": "webhook", "connection": "pd"}}})


class Books:
    """The incidents of one config, as watches of two machines store them."""

    def __init__(self, stream: ArchivedStream, directory: Path) -> None:
        self.config, self.directory = stream.config, directory

    @contextmanager
    def opened(self, machine: str, *, with_zookeeper: bool = True) -> Iterator[BookStore]:
        with Store.of(self.config.storage) as store, ZooKeeperSession.of(self.config) as session:
            reached = session if with_zookeeper else None
            root = f"{self.config.zookeeper.root}-{self.directory.name}"
            yield BookStore(root, reached, store, self.directory / machine)


@pytest.fixture
def books(stack: Stack, tmp_path: Path, topic_name: str) -> Books:
    return Books(ArchivedStream(tmp_path, topic_name), tmp_path)


def findings(count: int) -> list[Finding]:
    return [
        Finding(f"stream_{each}", "archive_lag", Verdict.BROKEN, PromiseSeverity.CRITICAL, detail=f"{each:x}" * 200)
        for each in range(count)
    ]


def watch(books: BookStore, found: list[Finding], now_ms: int) -> list[Notification]:
    """Return the messages that a watch has in hand; they are sent."""
    claimed: list[Notification] = []

    def follow(book: IncidentBook) -> IncidentBook:
        claimed.clear()
        book, due = claim(advance(book, found, ALERTS, now_ms), now_ms, ALERTS.channels)
        claimed.extend(due)
        return book

    books.change(follow)
    if claimed:
        books.change(lambda book: settle(book, {each.id: None for each in claimed}, now_ms))
    return claimed


def test_two_thousand_incidents_are_told_once(books: Books) -> None:
    found = findings(2_500)
    told = []
    for number, machine in enumerate("abab"):
        with books.opened(machine) as store:
            told.append(len(watch(store, found, NOW + number * 60_000)))
            assert len(store.load().incidents) == 2_500
    assert told == [2_500, 0, 0, 0]


def test_what_was_done_while_zookeeper_was_away_is_there_when_it_is_back(books: Books) -> None:
    with books.opened("a") as store:
        assert len(watch(store, findings(1), NOW)) == 1
    with books.opened("b", with_zookeeper=False) as store:
        [incident] = store.load().incidents
        store.change(lambda book: acknowledge(book, incident.id, Acknowledgement("ann", NOW, "on it")))
    with books.opened("a", with_zookeeper=False) as store:
        assert [each.incident for each in watch(store, findings(2), NOW + 60_000)] != []
    for minute, machine in enumerate("ab", start=2):
        with books.opened(machine) as store:
            assert watch(store, findings(2), NOW + minute * 60_000) == []
            first, second = store.load().incidents
            assert first.acknowledged is not None
            assert second.is_open
