"""What the pages show of a status document."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_status import NOW_MS, flights, quiet, sample_status

from waybill.errors import DocumentDamaged, DocumentTooNew
from waybill.watch.status import ChainRange, Status, TopicPartitionStatus
from waybill.web.chain_bar import WIDTH, end_of_chain, trend_of, whole_chain
from waybill.web.csrf import is_own_origin
from waybill.web.figures import Tone
from waybill.web.forms import ActionName, command_of
from waybill.web.frame import Links, Role, Viewer
from waybill.web.other_pages import cost_page, incidents_page, kafka_page, replays_page
from waybill.web.stream_page import stream_page
from waybill.web.streams_page import clear_figure, streams_page

LINKS = Links("/team/waybill/ui", "/team")
VIEWER, ADMIN = Viewer("vic", Role.VIEWER), Viewer("ada", Role.ADMIN)


def test_a_document_is_read_as_it_was_written() -> None:
    status = sample_status()
    assert Status.parse(status.content(), "here") == status


def test_a_document_of_a_newer_waybill_and_a_damaged_one_are_refused_by_name() -> None:
    import gzip

    with pytest.raises(DocumentTooNew, match="here"):
        Status.parse(gzip.compress(b'{"v": 99, "status": {}}'), "here")
    for content in (b"", b"no gzip", gzip.compress(b"{"), gzip.compress(b'{"v": 1, "status": {"at_ms": "x"}}')):
        with pytest.raises(DocumentDamaged, match="here"):
            Status.parse(content, "here")


def test_fields_of_a_newer_waybill_are_left_out() -> None:
    import gzip

    content = gzip.compress(b'{"v": 1, "status": {"at_ms": 1, "seconds": 2, "moon": 3}}')
    assert Status.parse(content, "here") == Status(1, 2.0)


def test_the_worst_stream_comes_first_with_what_waits_for_a_person() -> None:
    page = streams_page(sample_status(), LINKS, VIEWER, NOW_MS)
    assert [(row.name, row.health) for row in page.rows] == [
        ("flights", Tone.CRITICAL),
        ("paused", Tone.PAUSED),
        ("weather", Tone.OK),
    ]
    assert [each.text for each in page.waiting] == [
        "flights/1 is stopped: RetentionGap",
        "a run is held: 1 critical check failed",
        "backfill 20260921_7f3a is built: promote or cancel it",
        "paused by ada: Kafka is moved",
    ]
    assert page.rows[0].lag.text == "240 s"


def test_forms_are_allowed_by_role_and_name_the_command() -> None:
    status = sample_status()
    page = stream_page(status, flights(), LINKS, VIEWER, NOW_MS)
    assert page.hold is not None
    assert not page.hold.release.is_allowed
    page = stream_page(status, flights(), LINKS, ADMIN, NOW_MS)
    assert page.stops[0].accept is not None
    assert page.stops[0].accept.is_allowed
    assert page.stops[0].accept.command == (
        'waybill gaps accept flights 1 --stream flights --within 11860-12159 --reason "…"'
    )
    assert page.stops[0].lost_at_most.text == "300"
    assert page.hold is not None
    assert page.hold.release.command == 'waybill quality release flights --plan 20260921T101500Z_ab12 --reason "…"'
    built, promoted = page.backfills
    assert (built.promote is not None, built.undo is not None) == (True, False)
    assert (promoted.promote is not None, promoted.undo is not None) == (False, True)


def test_a_command_quotes_what_a_shell_would_read() -> None:
    fields = {"stream": "flights"}
    assert command_of(ActionName.PAUSE, fields, "it's; rm -rf", "ada") == (
        "waybill pause flights --reason 'it'\"'\"'s; rm -rf' --by ada"
    )


def test_the_other_pages_show_incidents_topics_replays_and_usage() -> None:
    status = sample_status()
    incidents = incidents_page(status, LINKS, ADMIN, NOW_MS)
    assert [each.stream for each in incidents.open] == ["flights"]
    assert incidents.resolved[0].acknowledge is None
    assert [each.outcome for each in incidents.actions] == [
        "paused: ingest paused",
        "ordered: run r1 of DAG backfill; it has failed",
    ]
    assert incidents.actions[1].outcome_href.endswith("/actions/taken/1790000000000-0123456789abcdef01234568")
    assert [each.name for each in kafka_page(status, LINKS, NOW_MS).findings] == ["kafka_disk_used"]
    assert [(each.name, each.state.text, each.disk.text) for each in kafka_page(status, LINKS, NOW_MS).brokers] == [
        ("1", "alive", "41%"),
        ("2", "away", "–"),
        ("3", "alive", "87%"),
    ]
    assert [each.topic for each in kafka_page(status, LINKS, NOW_MS).topics] == ["flights", "paused", "weather"]
    assert replays_page(status, LINKS, NOW_MS).rows[0].state == "ongoing"
    cost = cost_page(status, LINKS, NOW_MS)
    assert [row.name for row in cost.days] == ["2026-09-21", "2026-09-20"]
    assert cost.total.requests.text == "1,902"


def test_a_link_to_a_script_is_no_link() -> None:
    status = sample_status()
    evil = replace(status.incidents[0], link="javascript:alert(1)", runbook="data:text/html,x")
    [row] = incidents_page(replace(status, incidents=(evil,)), LINKS, ADMIN, NOW_MS).open
    assert (row.href, row.figure.href, row.runbook) == ("", "", "")


def test_the_time_to_clear_follows_from_both_rates() -> None:
    stream = quiet("weather")
    behind = sum(each.lag for each in stream.topic_partitions)
    assert clear_figure(stream).value == behind / 0.5
    assert clear_figure(replace(stream, archived_per_second=9.0)).text == "it grows"
    assert clear_figure(replace(stream, archived_per_second=None)).text == "not known yet"


offsets = st.integers(0, 10**12)


@given(st.lists(offsets, min_size=8, max_size=8))
def test_what_is_drawn_is_within_the_bar_and_as_long_as_it_is(values: list[int]) -> None:
    a, b, c, d, e, f, g, h = sorted(values)
    tp = TopicPartitionStatus("t", 0, b, h, g, a, f, e, gaps=(ChainRange(c, d, "RetentionGap", "ada", "why"),))
    for bar in (whole_chain(tp), end_of_chain(tp)):
        for _, segments in bar.rows:
            for each in segments:
                assert 0 <= each.x <= WIDTH
                assert 0 < each.width <= WIDTH
                assert each.x + each.width <= WIDTH + 0.02
    kafka = dict(whole_chain(tp).rows)["Kafka"]
    if h > b:
        assert kafka[0].x + kafka[0].width == pytest.approx(WIDTH, abs=0.02)


def test_a_trend_needs_two_values() -> None:
    assert trend_of(()).points == ""
    assert trend_of(flights().trend).points.startswith("0.0,24.0")


@pytest.mark.parametrize(
    ("origin", "site", "own"),
    [
        ("https://waybill.example.net", None, True),
        ("https://waybill.example.net", "same-origin", True),
        ("https://waybill.example.net", "cross-site", False),
        ("https://waybill.example.net.evil.net", None, False),
        ("null", None, False),
        (None, None, False),
        ("https://evil@waybill.example.net", None, False),
    ],
)
def test_only_pages_of_this_server_send_forms(origin: str | None, site: str | None, own: bool) -> None:
    assert is_own_origin(origin, site, {"waybill.example.net"}) is own
