"""Shares of the last hour's runs, and the result of the recorded ledger."""

from __future__ import annotations

import pytest

from waybill.config.models import Config, Stream
from waybill.watch.incidents.finding import Finding, Verdict
from waybill.watch.promises.log_figures import Logs
from waybill.watch.promises.samples import Samples
from waybill.watch.promises.table_figures import Published, TableState, table_findings

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def stream(**promises: object) -> Stream:
    document = {
        "version": 1,
        "storage": {"bucket": "bucket"},
        "streams": {
            "flights": {
                "topics": ["flights"],
                "parser": {"event_time": {"field": "at"}},
                "table": "t.flights",
                "promises": promises,
            }
        },
    }
    return Config.model_validate(document).stream("flights")


def finding(state: TableState, promise: str, **promises: object) -> Finding:
    logs = Logs({}, {}, {})
    found = table_findings("flights", stream(**promises), state, logs, Samples(), NOW_MS)
    [each] = [each for each in found if each.promise == promise]
    return each


def published(*runs: tuple[int, int, int]) -> TableState:
    """Return the state after runs, each with its age in minutes, its rows and the late ones among them."""
    return TableState(
        NOW_MS, {}, {}, tuple(Published(NOW_MS - age * 60_000, rows, late=late) for age, rows, late in runs)
    )


@pytest.mark.parametrize(
    ("runs", "verdict"),
    [
        ([(10, 1000, 200)], Verdict.KEPT),
        ([(10, 1000, 201)], Verdict.BROKEN),
        ([(10, 600, 201), (50, 400, 0)], Verdict.BROKEN),
        ([(10, 1000, 0), (61, 1000, 1000)], Verdict.KEPT),
        ([(10, 999, 999)], Verdict.KEPT),
        ([], Verdict.KEPT),
    ],
)
def test_late_rows_of_the_last_hour_break_the_promise(runs: list[tuple[int, int, int]], verdict: Verdict) -> None:
    assert finding(published(*runs), "late_share").verdict is verdict


def test_late_after_is_a_bound_of_the_stored_histogram() -> None:
    assert stream(late_share={"late_after": "6h"}).promises.late_share.late_after.total_seconds() == 6 * 3600
    with pytest.raises(ValueError, match="must be one of 1h, 3h, 6h, 12h, 1d, 3d, 7d, 30d"):
        stream(late_share={"late_after": "2h"})


def test_a_recorded_ledger_that_does_not_balance_names_the_first_offsets() -> None:
    state = TableState(NOW_MS, {}, {}, ledger_ms=NOW_MS - HOUR_MS, imbalances=("flights/0 offsets 1–2: 1 missing", "x"))
    found = finding(state, "ledger_balance")
    assert (found.verdict, found.figure, found.since_ms) == (Verdict.BROKEN, "2 imbalances", NOW_MS - HOUR_MS)
    assert found.detail == "flights/0 offsets 1–2: 1 missing; and 1 more"
    assert found.command == "waybill verify flights"
    assert finding(TableState(NOW_MS, {}, {}), "ledger_balance").verdict is Verdict.KEPT


def test_a_state_is_read_as_it_was_stored() -> None:
    state = TableState(
        NOW_MS, {}, {}, (Published(1, 2, 3, 4, 5, 6),), 7, ("held",), "plan", "window", 8, ("a",), {"main": 9}
    )
    assert TableState.parse(state.document()) == state


def test_a_share_of_too_few_messages_prints_no_limit_and_one_beyond_it_differs_from_it() -> None:
    """V4: 100 % stood beside `at most 20%`, as kept."""
    few = finding(published((10, 999, 999)), "late_share")
    assert (few.verdict, few.figure) == (Verdict.KEPT, "100.0%")
    assert few.limit == "none below 1,000 messages; the last hour had 999"
    beyond = finding(published((10, 100_000, 20_001)), "late_share")
    assert (beyond.verdict, beyond.figure, beyond.limit) == (Verdict.BROKEN, "20.001%", "at most 20.0%")


# --- messages at which a parser raised --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("runs", "verdict"),
    [
        ([], Verdict.KEPT),
        ([(10, 0)], Verdict.KEPT),
        ([(10, 1)], Verdict.BROKEN),
        ([(59, 1), (1, 0)], Verdict.BROKEN),
        ([(61, 5)], Verdict.KEPT),
    ],
)
def test_one_message_at_which_a_parser_raised_is_an_incident(runs: list[tuple[int, int]], verdict: Verdict) -> None:
    state = TableState(
        NOW_MS, {}, {}, tuple(Published(NOW_MS - age * 60_000, 1_000_000, parser_failed=failed) for age, failed in runs)
    )
    found = finding(state, "parser_failed")
    assert found.verdict is verdict
    if verdict is Verdict.BROKEN:
        assert found.command == "waybill quarantine ls flights"
