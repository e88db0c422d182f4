"""Hostile names and reasons, wherever they are shown: tables, findings, failures, metrics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

from waybill.base.errors import UnexpectedFailure
from waybill.base.printable import printable
from waybill.config.models.promises import PromiseSeverity
from waybill.interfaces.cli.render import PrintedColumn, print_table
from waybill.watch.incidents.failures import Failures
from waybill.watch.incidents.finding import Finding, Verdict

HOSTILE = (
    "[red]group[/red]",
    "two\nlines",
    "\x1b[2Jcleared\x07",
    "\u202egnp.exe",
    "half \ud800 pair",
    "\u2028line\u0085next\x9b31m",
    'münchen 🛫 \\ "quoted"',
    "\r\n# TYPE waybill_up gauge",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_in_their_cell(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_table([PrintedColumn("group"), PrintedColumn("lag", figure=True)], [[name, "7"], ["sound", "8"]])
    out = capsys.readouterr().out
    lines = out.encode("utf-8").decode().split("\n")
    assert len(lines) == 4
    assert lines[1].startswith(printable(name))
    assert lines[1].endswith(" 7")
    assert "\x1b" not in out


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_in_findings_and_failures_are_one_line_of_utf_8(name: str) -> None:
    finding = Finding(
        "", "p", Verdict.BROKEN, PromiseSeverity.WARNING, name, name, f"group {name}", (name,), subject=name
    )
    failure = UnexpectedFailure("a group", ValueError(name))
    for text in (finding.figure, finding.limit, finding.detail, *finding.names, str(failure)):
        assert len(text.encode().decode().splitlines()) == 1
        assert "\x1b" not in text
    assert finding.subject == name
    failures = Failures()
    failures.caught(f"group {name!r}", ValueError(name))
    assert len(failures.texts[0].splitlines()) == 1


@given(st.text(st.characters(codec="utf-8")))
def test_labels_of_metrics_hold_every_name(name: str) -> None:
    class One(Collector):
        def collect(self) -> list[GaugeMetricFamily]:
            family = GaugeMetricFamily("waybill_promise_kept", "Kept.", labels=["stream", "subject"])
            family.add_metric([name, name], 1)
            return [family]

    registry = CollectorRegistry()
    registry.register(One())
    content: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]
    [family] = text_string_to_metric_families(content.decode())  # type: ignore[no-untyped-call]
    assert family.samples[0].labels == {"stream": name, "subject": name}


@given(st.text(st.characters()))
def test_a_printable_text_is_one_line_that_utf_8_can_encode(text: str) -> None:
    shown = printable(text)
    assert len(shown.encode().decode().splitlines()) <= 1
    assert printable(shown) == shown
