"""What the pages show of a status document."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_status import NOW_MS, flights, promise, quiet, sample_status

from waybill.base.errors import DocumentDamaged, DocumentTooNew
from waybill.interfaces.operations.catalogue import PAUSE
from waybill.interfaces.operations.declaration import Role
from waybill.interfaces.web.chain_bar import WIDTH, end_of_chain, trend_of, whole_chain
from waybill.interfaces.web.csrf import is_own_origin
from waybill.interfaces.web.figures import Tone
from waybill.interfaces.web.frame import Links, Viewer
from waybill.interfaces.web.other_pages import cost_page, incidents_page, kafka_page, replays_page
from waybill.interfaces.web.stream_page import stream_page
from waybill.interfaces.web.streams_page import clear_figure, streams_page
from waybill.interfaces.web.topic_partition_rows import ROWS_ON_A_PAGE, TopicPartitionFilter, choose_rows
from waybill.watch.incidents.finding import Verdict
from waybill.watch.promises.status import ChainRange, StopStatus, StreamStatus, TopicPartitionStatus, WatchStatus

LINKS = Links("/team/waybill/ui", "/team")
VIEWER, ADMIN = Viewer("vic", Role.VIEWER), Viewer("ada", Role.ADMIN)


def test_a_document_is_read_as_it_was_written() -> None:
    status = sample_status()
    assert WatchStatus.parse(status.content(), "here") == status


def test_a_document_of_a_newer_waybill_and_a_damaged_one_are_refused_by_name() -> None:
    import gzip

    with pytest.raises(DocumentTooNew, match="here"):
        WatchStatus.parse(gzip.compress(b'{"v": 99, "status": {}}'), "here")
    for content in (b"", b"no gzip", gzip.compress(b"{"), gzip.compress(b'{"v": 1, "status": {"at_ms": "x"}}')):
        with pytest.raises(DocumentDamaged, match="here"):
            WatchStatus.parse(content, "here")


def test_fields_of_a_newer_waybill_are_left_out() -> None:
    import gzip

    content = gzip.compress(b'{"v": 1, "status": {"at_ms": 1, "seconds": 2, "moon": 3}}')
    assert WatchStatus.parse(content, "here") == WatchStatus(1, 2.0)


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
    assert [each.action for each in built.forms] == ["promote", "cancel"]
    assert [each.action for each in promoted.forms] == ["undo"]


def test_a_command_quotes_what_a_shell_would_read() -> None:
    fields = {"stream": "flights"}
    assert PAUSE.command_line(PAUSE.values_of(fields), "it's; rm -rf", "ada") == (
        "waybill pause flights --reason 'it'\"'\"'s; rm -rf' --by ada"
    )


def test_the_other_pages_show_incidents_topics_replays_and_usage() -> None:
    status = sample_status()
    incidents = incidents_page(status, LINKS, ADMIN, NOW_MS)
    assert [each.incident.stream for each in incidents.open] == ["flights"]
    assert incidents.resolved[0].acknowledge is None
    assert [each.outcome for each in incidents.actions] == [
        "paused: ingest paused",
        "ordered: run r1 of DAG backfill; it has failed",
    ]
    assert incidents.actions[1].outcome_href.endswith("/actions/taken/1790000000000-0123456789abcdef01234568")
    assert [each.promise.promise for each in kafka_page(status, LINKS, NOW_MS).findings] == [
        "kafka_under_replicated",
        "kafka_disk_used",
    ]
    assert [(each.name, each.state.text, each.disk.text) for each in kafka_page(status, LINKS, NOW_MS).brokers] == [
        ("1", "alive", "41%"),
        ("2", "away", "–"),
        ("3", "alive", "87%"),
    ]
    assert [each.topic for each in kafka_page(status, LINKS, NOW_MS).topics] == ["flights", "paused", "weather"]
    assert replays_page(status, LINKS, ADMIN, NOW_MS).rows[0].state == "ongoing"
    cost = cost_page(status, LINKS, NOW_MS)
    assert [row.name for row in cost.days] == ["2026-09-21", "2026-09-20"]
    assert cost.total.requests.text == "1,902"


def test_a_link_to_a_script_is_no_link() -> None:
    status = sample_status()
    evil = replace(status.incidents[0], link="javascript:alert(1)", runbook="data:text/html,x")
    [row] = incidents_page(replace(status, incidents=(evil,)), LINKS, ADMIN, NOW_MS).open
    assert (row.figure.href, row.runbook) == ("", "")
    shared = replace(status.shared[0], link="javascript:alert(1)")
    [promise] = streams_page(replace(status, shared=(shared,)), LINKS, ADMIN, NOW_MS).shared
    assert promise.figure.href == ""


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


def big(count: int = 10_000) -> StreamStatus:
    tps = tuple(
        TopicPartitionStatus("big", number, 0, 1_000 + number, 1_000, 0, stop="ChainBroken" if number == 5 else "")
        for number in range(count)
    )
    return replace(quiet("big"), topic_partitions=tps)


def test_of_many_topic_partitions_the_stopped_and_the_most_behind_are_shown_first() -> None:
    first = choose_rows(big(), TopicPartitionFilter(), LINKS)
    assert len(first.rows) == ROWS_ON_A_PAGE
    assert [row.name for row in first.rows[:3]] == ["big/5", "big/9999", "big/9998"]
    assert (first.shown, first.before) == ("1 to 100 of 10,000", "")
    assert first.after == "/team/waybill/ui/streams/big?page=2#topic-partitions"
    last = choose_rows(big(), TopicPartitionFilter(page=1_000_000), LINKS)
    assert (last.choice.page, last.after, last.rows[-1].name) == (100, "", "big/0")


def test_topic_partitions_are_found_by_a_part_of_their_name() -> None:
    found = choose_rows(big(), TopicPartitionFilter.of({"tp": " BIG/999 "}), LINKS)
    assert found.shown == "1 to 11 of 11, of 10,000 topic-partitions in all"
    assert choose_rows(big(), TopicPartitionFilter("weather"), LINKS).shown == "none of 10,000 topic-partitions"


@given(st.dictionaries(st.sampled_from(["tp", "page"]), st.text(max_size=8)))
def test_any_address_is_a_choice(parameters: dict[str, str]) -> None:
    choice = TopicPartitionFilter.of(parameters)
    assert choose_rows(quiet("weather"), choice, LINKS).choice.page == 1
    assert choice.query.isprintable()


def test_while_kafka_is_away_the_last_figures_are_shown_with_their_age() -> None:
    lag = replace(
        promise("weather", "archive_lag", broken=True),
        verdict=Verdict.UNKNOWN,
        known_verdict=Verdict.BROKEN,
        measured_ms=NOW_MS - 9 * 60_000,
    )
    stream = replace(quiet("weather"), promises=(lag,), logs_ms=NOW_MS - 9 * 60_000)
    status = replace(sample_status(), streams=(stream,))
    [row] = streams_page(status, LINKS, VIEWER, NOW_MS).rows
    assert (row.lag.text, row.lag.tone, row.lag.note, row.old) == ("1,200 s", Tone.UNKNOWN, "9 min ago", "9 min ago")
    assert (row.health, row.health_text) == (
        Tone.UNKNOWN,
        "no promise could be measured; broken when they were measured: archive_lag: 20 min",
    )
    page = stream_page(status, stream, LINKS, VIEWER, NOW_MS)
    assert (page.logs_old, page.lag.note) == ("9 min ago", "9 min ago")


def test_all_broken_promises_are_named_and_many_stops_are_one_line() -> None:
    stops = tuple(StopStatus("flights", number, "TopicRecreated", "", NOW_MS, None) for number in range(64))
    stream = replace(flights(), stops=stops, hold=None)
    page = streams_page(replace(sample_status(), streams=(stream,)), LINKS, VIEWER, NOW_MS)
    assert [each.promise.promise for each in page.rows[0].broken] == ["held_publication", "named_stop"]
    assert page.rows[0].health_text == "held_publication: a run is held; named_stop: 1 stopped topic-partition"
    assert page.waiting[0].text == "64 topic-partitions are stopped: TopicRecreated"


def test_a_run_leads_to_its_dag_run_or_else_to_its_dag() -> None:
    sweep, known, unknown = stream_page(sample_status(), flights(), LINKS, VIEWER, NOW_MS).runs
    assert sweep.href == "/team/dags/dedup__flights/runs/asset_triggered__2026-09-21T13%3A55%3A30%2B00%3A00"
    assert known.href.startswith("/team/dags/partition_group__default/runs/scheduled__")
    assert (unknown.href, unknown.what) == ("/team/dags/partition_group__default", "DAG partition_group__default")


def test_the_sample_does_not_contradict_itself() -> None:
    """Pictures of the documentation show it."""
    for stream in sample_status().streams:
        stopped = [tp for tp in stream.topic_partitions if tp.stop]
        assert len(stopped) == len(stream.stops)
        assert all(tp.earliest > tp.committed for tp in stopped), "Kafka deleted what was not archived"
        for tp in stream.topic_partitions:
            assert tp.archived_from <= (tp.swept or 0) <= (tp.published or 0) <= tp.committed <= tp.end
    ledger = flights().ledger
    assert ledger is not None
    counts = ledger.counts
    assert counts["archived_offsets"] == counts["archived_messages"] + counts["accepted_gaps"]
    assert counts["archived_messages"] == counts["rows"] + counts["quarantine"] + counts["held"] + counts["waiting"]
    assert counts["rows"] == counts["unique"] + counts["duplicates"] + counts["unswept"]
