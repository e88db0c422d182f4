"""Books that parted: what only one of them knows stays, and what one of them has done is not done again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from waybill.config.models.alerts import Alerts
from waybill.config.models.promises import PromiseSeverity
from waybill.watch.incidents.finding import Finding, Verdict
from waybill.watch.incidents.incident import Acknowledgement, IncidentBook
from waybill.watch.incidents.merge import merge
from waybill.watch.incidents.rules import acknowledge, advance, claim, settle

MINUTE = 60_000
NOON = 1_800_000_000_000
CHANNELS = {"mail": {"type": "email", "to": ["a@b.c"]}, "pager": {"type": "webhook", "connection": "pd"}}
ALERTS = Alerts.model_validate({"channels": CHANNELS, "escalate_to": ["pager"]})
BROKEN = Finding("flights", "archive_lag", Verdict.BROKEN, PromiseSeverity.CRITICAL)
KEPT = replace(BROKEN, verdict=Verdict.KEPT)


def watched(book: IncidentBook, minute: int, *findings: Finding, sends: bool = True) -> IncidentBook:
    now_ms = NOON + minute * MINUTE
    book, claimed = claim(advance(book, findings, ALERTS, now_ms), now_ms, ALERTS.channels)
    return settle(book, {each.id: None for each in claimed}, now_ms) if sends else book


def waiting(book: IncidentBook) -> list[tuple[str, str]]:
    return [(str(each.kind), each.channel) for each in book.outbox]


OPENED = watched(IncidentBook(), 0, BROKEN)


def test_merge_with_an_ancestor_changes_nothing() -> None:
    books = [IncidentBook(), watched(IncidentBook(), 0, BROKEN, sends=False), OPENED]
    books.append(acknowledge(OPENED, OPENED.incidents[0].id, Acknowledgement("ann", NOON, "on it")))
    books.append(watched(OPENED, 70, BROKEN))
    books.append(watched(watched(OPENED, 70, KEPT), 80, KEPT))
    for later in books[2:]:
        for earlier in books[:3]:
            assert merge(earlier, later) == later
            assert merge(later, earlier).outbox == later.outbox


def test_message_that_one_side_sent_is_not_sent_by_the_other_and_a_new_one_stays() -> None:
    pending = watched(OPENED, 70, BROKEN, sends=False)
    sent = watched(OPENED, 70, BROKEN)
    assert waiting(pending) == [("escalated", "pager")]
    assert waiting(merge(pending, sent)) == waiting(merge(sent, pending)) == []
    assert waiting(merge(OPENED, pending)) == waiting(merge(pending, OPENED)) == [("escalated", "pager")]
    late = watched(sent, 400, BROKEN, sends=False)
    assert waiting(merge(sent, late)) == [("reminder", "mail"), ("reminder", "pager")]


def test_channel_that_only_one_side_escalated_to_is_told_of_the_end_that_the_other_side_found() -> None:
    over = watched(watched(OPENED, 70, KEPT), 80, KEPT)
    escalated = watched(OPENED, 70, BROKEN)
    for merged in (merge(over, escalated), merge(escalated, over)):
        assert waiting(merged) == [("resolved", "pager")]
        assert not merged.incidents[0].is_open
        assert merge(escalated, merged) == merged


def test_two_incidents_about_the_same_become_one_that_stays_open() -> None:
    other = watched(IncidentBook(), 1, BROKEN)
    merged = watched(merge(OPENED, other), 2, BROKEN, sends=False)
    first, second = merged.incidents
    assert first.is_open
    assert second.outcome == f"it is the same as {first.id}"
    assert waiting(merged) == [("resolved", "mail")]


def test_first_acknowledgement_stays() -> None:
    def by(name: str, minute: int) -> Any:
        return acknowledge(OPENED, OPENED.incidents[0].id, Acknowledgement(name, NOON + minute, "on it"))

    for merged in (merge(by("ann", 1), by("bob", 2)), merge(by("bob", 2), by("ann", 1)), merge(by("ann", 1), OPENED)):
        assert merged.incidents[0].acknowledged is not None
        assert merged.incidents[0].acknowledged.by == "ann"
