"""Tables, counts, sizes and times as text."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta, timezone

import pytest

from waybill.config.models.quantities import counted
from waybill.interfaces.cli.render import PrintedColumn, bytes_text, count, print_table, time_text, time_text_ms


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KB"),
        (999_949, "999.9 KB"),
        (999_951, "1.0 MB"),
        (18_200_000, "18.2 MB"),
        (5 * 10**15, "5.0 PB"),
        (5 * 10**18, "5000.0 PB"),
    ],
)
def test_bytes_text_has_one_decimal_and_a_unit(size: int, text: str) -> None:
    assert bytes_text(size) == text


def test_counts_have_separators_and_times_are_utc() -> None:
    assert (count(None), count(0), count(1234567)) == ("-", "0", "1,234,567")
    assert time_text(datetime(2026, 1, 31, 1, 0, 0, 999, timezone(timedelta(hours=1)))) == "2026-01-31T00:00:00Z"
    assert time_text(datetime(2026, 1, 31, tzinfo=UTC)) == "2026-01-31T00:00:00Z"
    assert time_text_ms(datetime(2026, 1, 31, 1, 0, 0, 999, timezone(timedelta(hours=1)))) == "2026-01-31T00:00:00.000Z"


def test_plural_adds_s_unless_there_is_exactly_one() -> None:
    assert [counted(number, "gap") for number in (0, 1, 2, 11_072)] == ["0 gaps", "1 gap", "2 gaps", "11,072 gaps"]


def test_table_in_a_pipe_cuts_and_wraps_no_cell(capsys: pytest.CaptureFixture[str]) -> None:
    key = "backup/" + "x" * 300
    print_table(
        [PrintedColumn("key"), PrintedColumn("offsets", figure=True)], [[key, "1,000,000"], ["[bold]a[/bold]", "1"]]
    )
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["key", "offsets"]
    assert first.split() == [key, "1,000,000"]
    assert second.split() == ["[bold]a[/bold]", "1"]
    assert first.endswith("1,000,000")
    assert second.endswith("        1")


def test_table_on_a_narrow_terminal_wraps_names_and_keeps_figures_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    figures = ["1,000,000,000", "2,000,000,000", "3,000,000,000"]
    columns = [PrintedColumn("key"), *(PrintedColumn(f"figure {i}", figure=True) for i in range(3))]
    print_table(columns, [["backup/" + "x" * 60, *figures]])
    head, first, *more = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert head.split() == ["key", "figure", "0", "figure", "1", "figure", "2"]
    assert first.split()[1:] == figures
    assert first.split()[0] + "".join(line.strip() for line in more) == "backup/" + "x" * 60
    assert len(first.split()[0]) >= 20
