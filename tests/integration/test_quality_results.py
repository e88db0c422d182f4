"""Audits of real runs: the results in the table and on the command line, the page of Data Docs, appended once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from archived_stream import waybill
from partition_scenes import DAY_MS, Scene, event, junk

from waybill.config import names
from waybill.config.names import TopicPartition
from waybill.tables.audit import Audit, AuditRecord, append_results, find_audit
from waybill.tables.audit.results_table import read_results
from waybill.tables.iceberg import catalog_of

pytestmark = pytest.mark.integration

TP = TopicPartition("flights", 0)
QUALITY = {
    "expectations": [
        {"expect_column_values_to_be_between": {"column": "number", "max_value": 150}},
        {"expect_column_values_to_be_unique": {"column": "message_id"}, "severity": "critical"},
    ],
    "checks": {"clock_skew": "off"},
}


@pytest.fixture
def audited(make_scene: Callable[..., Scene]) -> tuple[Scene, Audit]:
    """A run of 200 messages, two of them junk, and its audit."""
    scene = make_scene(columns={"number": {"type": "long", "field": "at"}}, quality=QUALITY)
    scene.put(TP, [event(n, n) if n not in (7, 8) else junk(n) for n in range(200)])
    report = scene.run()
    [key] = [key for key in scene.keys("plans/") if key.endswith(f"{report.plan}.json")]
    audit = find_audit(scene.store, key)
    assert audit is not None
    return scene, audit


def test_an_audit_of_a_run_has_results_of_both_kinds(audited: tuple[Scene, Audit]) -> None:
    scene, audit = audited
    found = {result.check: result for result in audit.results}
    assert found.keys() == {
        "rows_match_messages",
        "offsets_unique",
        "quarantine_share",
        "event_time_null_share",
        "message_id_null_share",
        "parser_failed",
        "expect_column_values_to_be_between",
        "expect_column_values_to_be_unique",
    }
    assert found["rows_match_messages"].observed == "200 messages, 198 rows, 2 in quarantine"
    failed = found.pop("expect_column_values_to_be_between")
    assert all(result.success for result in found.values())
    assert (failed.unexpected_count, failed.examples[0]) == (49, "flights/0@151: 151")
    assert audit.data_docs == names.data_docs_key(scene.store.prefix, "flights", audit.plan)
    assert b"<html" in scene.store.read(audit.data_docs)


def test_rivals_append_the_results_of_an_audit_once(audited: tuple[Scene, Audit]) -> None:
    scene, audit = audited

    def append(_: int) -> None:
        with catalog_of(scene.config) as catalog:
            append_results(catalog, [AuditRecord("flights", audit, 5)])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(append, range(4)))
    rows = read_results(scene.catalog, "flights", plan=audit.plan)
    assert [row["expectation"] for row in rows if row["run"] == audit.run_id] == [r.check for r in audit.results]


def test_the_command_line_shows_an_audit_and_the_history(audited: tuple[Scene, Audit], tmp_path: Path) -> None:
    scene, audit = audited
    append_results(scene.catalog, [AuditRecord("flights", audit, None)])
    file = tmp_path / "streams.yaml"
    file.write_text(yaml.safe_dump(scene.config.model_dump(mode="json")))
    shown = waybill("quality", "show", "flights", "--plan", audit.plan, WAYBILL_CONFIG=str(file))
    assert shown.code == 0, shown.err
    assert "failed (warning)" in shown.out
    assert "expect_column_values_to_be_between(column=number, max_value=150)" in shown.out
    assert "  expect_column_values_to_be_between: flights/0@151: 151" in shown.out
    assert f"Data Docs: {audit.data_docs}" in shown.out
    document = waybill("quality", "show", "flights", "--plan", audit.plan, "--json", WAYBILL_CONFIG=str(file)).document
    assert (document["plan"], len(document["results"])) == (audit.plan, len(audit.results))
    history = waybill("quality", "history", "flights", "--since", "1h", "--json", WAYBILL_CONFIG=str(file)).document
    assert audit.run_id in [each["run"] for each in history]
    lines = waybill("quality", "history", "flights", WAYBILL_CONFIG=str(file)).out
    assert "expect_column_values_to_be_between (warning)" in lines
    unknown = waybill("quality", "show", "flights", "--plan", "none", WAYBILL_CONFIG=str(file))
    assert unknown.code != 0
    assert "stream 'flights' has no audit of plan none" in unknown.err


def test_a_stream_with_the_sink_files_is_audited_too(make_scene: Callable[..., Scene]) -> None:
    scene = make_scene(sink="files")
    scene.put(TP, [event(n, DAY_MS + n) for n in range(150)])
    report = scene.run()
    [key] = [key for key in scene.keys("plans/") if key.endswith(f"{report.plan}.json")]
    audit = find_audit(scene.store, key)
    assert audit is not None
    observed = {result.check: result.observed for result in audit.results}
    assert observed["rows_match_messages"] == "150 messages, 150 rows, 0 in quarantine"
    assert all(result.success for result in audit.results)
