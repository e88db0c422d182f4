"""The HTML of the pages: what is known and what is not, links, commands, and names that look like HTML."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from pages_under_test import PREFIX, Pages
from sample_status import NOW_MS, flights, sample_status

from waybill.interfaces.operations.declaration import Role
from waybill.watch.promises.status import ChainRange, StreamDetails, StreamStatus, TopicPartitionStatus, UnreadPart

MINUTE_MS = 60_000
FRAGMENTS = ("streams", "streams/flights", "incidents", "kafka", "replays", "cost")
EVIL = '"><img src=x onerror=alert(1)><script>alert(1)</script>'
_VOID = {"input", "meta", "link", "br", "img", "polyline", "rect"}


class Elements(HTMLParser):
    """The elements of a page, with their ancestors and attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str], tuple[str, ...]]] = []
        self.feed(html)
        self.close()
        assert self.open == [], "each element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}, tuple(self.open)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self.open.pop() == tag

    def all(self, tag: str) -> Iterator[dict[str, str]]:
        return (attributes for name, attributes, _ in self.found if name == tag)


def html_of(pages: Pages, path: str, role: Role = Role.ADMIN) -> str:
    answer = pages.client(role=role).get(f"{PREFIX}/{path}")
    assert answer.status_code == 200, answer.text
    return answer.text


def with_details(pages: Pages, details: StreamDetails | None) -> str:
    pages.status = sample_status()
    streams = tuple(replace(each, details=details) if each.name == "flights" else each for each in pages.status.streams)
    pages.status = replace(pages.status, streams=streams)
    return html_of(pages, "fragments/streams/flights")


def test_an_empty_quarantine_is_told_only_if_it_was_read(pages: Pages) -> None:
    none = "No message is in quarantine."
    assert none in with_details(pages, StreamDetails(NOW_MS))


def test_a_quarantine_that_no_watch_has_read_is_not_known(pages: Pages) -> None:
    page = with_details(pages, None)
    assert "in quarantine." not in page
    assert "Not known: no watch has read it yet" in page


def test_a_quarantine_that_cannot_be_counted_is_not_known_with_the_reason(pages: Pages) -> None:
    unread = {"quarantine": UnreadPart("612,000 rows are too many to count here", None)}
    page = with_details(pages, StreamDetails(NOW_MS, unread=unread))
    assert "in quarantine." not in page
    assert "Not known: the last watch could not read it: 612,000 rows are too many to count here" in page


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        ("quarantine", "unexpected end of data"),
        ("audits", "expect_column_values_to_not_be_null(carrier)"),
        ("backfills", "20260921_7f3a"),
        ("gaps", "a broker was down"),
        ("dedup", "Sweeps compare keys over 7 d"),
    ],
)
def test_a_part_that_cannot_be_read_shows_its_last_state_with_its_age(pages: Pages, part: str, shown: str) -> None:
    details = flights().details
    assert details is not None
    unread = {part: UnreadPart("the catalog does not answer", NOW_MS - 40 * MINUTE_MS)}
    page = with_details(pages, replace(details, unread=unread))
    assert shown in page
    assert "This is the last known state: the last watch could not read it: the catalog does not answer" in page
    assert ">40 min ago</time>" in page


@pytest.mark.parametrize("path", FRAGMENTS)
def test_links_lead_somewhere_and_are_not_within_links(pages: Pages, path: str) -> None:
    pages.status = sample_status()
    nothing = TopicPartitionStatus("flights", 7, 0, 0, 0, 0)
    streams = tuple(replace(each, topic_partitions=(nothing, *each.topic_partitions)) for each in pages.status.streams)
    pages.status = replace(pages.status, streams=streams)
    for tag, attributes, ancestors in Elements(html_of(pages, f"fragments/{path}")).found:
        if tag == "a":
            assert "a" not in ancestors, attributes
            assert attributes["href"].startswith(("/", "https://")), attributes
        if tag in ("details", "div", "ul", "dl", "p", "table", "form"):
            assert "p" not in ancestors, "a browser would end the paragraph there"
        assert "title" not in attributes, "a tooltip needs a mouse"


@pytest.mark.parametrize("path", FRAGMENTS)
def test_names_that_look_like_html_are_text(pages: Pages, path: str) -> None:
    def evil(stream: StreamStatus) -> StreamStatus:
        details = stream.details
        if details is None:
            return stream
        gap = ChainRange(2_000, 2_300, EVIL, EVIL, EVIL)
        groups = tuple(
            replace(each, reason=EVIL, parser=EVIL, examples=tuple(replace(one, reason=EVIL) for one in each.examples))
            for each in details.quarantine
        )
        return replace(
            stream,
            topic_partitions=tuple(replace(tp, topic=EVIL, gaps=(gap,)) for tp in stream.topic_partitions),
            stops=tuple(replace(each, topic=EVIL, message=EVIL) for each in stream.stops),
            details=replace(details, gaps={f"{EVIL}/1": (gap,)}, quarantine=groups),
            runs=tuple(replace(each, run=EVIL) for each in stream.runs),
            promises=tuple(
                replace(each, detail=EVIL, figure=EVIL, link=f"javascript:{EVIL}") for each in stream.promises
            ),
        )

    pages.status = sample_status()
    pages.status = replace(pages.status, streams=tuple(evil(each) for each in pages.status.streams))
    found = Elements(html_of(pages, f"fragments/{path}"))
    assert list(found.all("script")) == []
    assert list(found.all("img")) == []
    assert not any(name.startswith("on") for _, attributes, _ in found.found for name in attributes)
    assert not any(each.get("href", "").startswith("javascript") for each in found.all("a"))


def test_a_page_of_ten_thousand_topic_partitions_is_small_and_can_be_searched(pages: Pages) -> None:
    tps = tuple(TopicPartitionStatus("big", number, 0, 2_000, 1_000, 0) for number in range(10_000))
    pages.status = sample_status(replace(flights(), name="big", topic_partitions=tps, stops=()))
    page = html_of(pages, "fragments/streams/big")
    until = time.monotonic() + 60
    while "is being read" in page and time.monotonic() < until:  # on a busy machine; the page asks again, too
        page = html_of(pages, "fragments/streams/big")
    assert len(page) < 400_000
    assert "1 to 100 of 10,000" in page
    found = html_of(pages, "streams/big?tp=big/4711")
    assert ">big/4711</a>" in found
    assert f'data-fragment="{PREFIX}/fragments/streams/big?tp=big%2F4711"' in found
    assert ">big/4711</a>" in html_of(pages, "fragments/streams/big?tp=big%2F4711")


def test_a_trace_link_names_its_stream(pages: Pages) -> None:
    page = html_of(pages, "fragments/streams/flights")
    assert f"{PREFIX}/trace?stream=flights&amp;topic=flights&amp;partition=2&amp;offset=10917" in page


def test_the_ledger_shows_what_it_counted(pages: Pages) -> None:
    page = html_of(pages, "fragments/streams/flights")
    assert "<dt>offsets in accepted gaps: lost</dt><dd>300</dd>" in page
    assert "<dt>unique rows</dt>" in page


def test_a_run_at_work_is_told_in_words(pages: Pages) -> None:
    assert "A partition run is held: it was planned <time" in html_of(pages, "fragments/streams/flights")
    pages.status = sample_status()
    streams = tuple(replace(each, hold=None) for each in pages.status.streams)
    pages.status = replace(pages.status, streams=streams)
    pages.clock += 60
    assert "A partition run is at work: it was planned <time" in html_of(pages, "streams/flights")
