"""The audit's document and the table of results, each written once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from audited_table import NOON, catalog_in
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    BadRequestError,
    CommitStateUnknownException,
    ForbiddenError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
)

from waybill.base.errors import CatalogUnavailable, ConfigError, DocumentDamaged, DocumentTooNew
from waybill.tables.audit import Audit, AuditRecord, CheckResult, Severity, append_results
from waybill.tables.audit import results_table as module
from waybill.tables.audit.results_table import (
    RESULTS_TABLE,
    compact_results,
    expire_results,
    keep_results_small,
    read_results,
)
from waybill.tables.iceberg.catalog import translate_catalog_errors

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
RESULTS = st.builds(
    CheckResult,
    st.text(min_size=1),
    st.dictionaries(st.text(), JSON),
    st.sampled_from(Severity),
    st.booleans(),
    st.none() | st.text(),
    st.none() | st.integers(0),
    st.lists(st.text()).map(tuple),
)
AUDITS = st.builds(
    Audit,
    st.text(),
    st.text(),
    st.datetimes(timezones=st.just(UTC)),
    st.lists(RESULTS, max_size=3).map(tuple),
    st.none() | st.text(),
    st.integers(1),
)


@given(AUDITS)
def test_an_audit_survives_its_document(audit: Audit) -> None:
    assert Audit.from_json("k", audit.to_json()) == audit


def test_an_audit_of_a_newer_version_and_a_damaged_one_are_refused() -> None:
    with pytest.raises(DocumentTooNew, match="audit k was written by a newer Waybill"):
        Audit.from_json("k", b'{"v": 2}')
    with pytest.raises(DocumentDamaged, match="audit k cannot be read"):
        Audit.from_json("k", b'{"v": 1, "results": 3}')


def result(severity: Severity, success: bool) -> CheckResult:
    return CheckResult("volume", {"at_least": "50%"}, severity, success, "40%", 1, ("flights/0@1: 2",))


def test_only_failures_hold_or_warn() -> None:
    results = tuple(result(severity, success) for severity in Severity for success in (True, False))
    audit = Audit("p", "r", NOON, results, None)
    assert audit.failed_critical == (result(Severity.CRITICAL, False),)
    assert audit.warnings == (result(Severity.WARNING, False),)


def test_a_result_as_text_names_arguments_and_counts() -> None:
    assert str(result(Severity.INFO, False)) == 'volume(at_least="50%"): 40% (1 unexpected)'


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return catalog_in(tmp_path)


def audit_of(plan: str, at: datetime = NOON) -> Audit:
    return Audit(plan, "run", at, (result(Severity.WARNING, False), result(Severity.INFO, True)), "quality/p.html")


def test_results_are_appended_once_however_often_a_run_is_repeated(catalog: Catalog) -> None:
    for _ in range(3):
        append_results(catalog, [AuditRecord("flights", audit_of("p1"), 17)])
    append_results(catalog, [AuditRecord("orders", audit_of("p1"), None)])  # plans of two streams may have one id
    rows = read_results(catalog, "flights")
    assert len(rows) == 2
    assert len(read_results(catalog, "orders")) == 2
    assert {key: rows[0][key] for key in ("plan", "run", "snapshot", "generation", "expectation", "arguments")} == {
        "plan": "p1",
        "run": "run",
        "snapshot": 17,
        "generation": 1,
        "expectation": "volume",
        "arguments": '{"at_least": "50%"}',
    }
    assert (rows[0]["examples"], rows[0]["data_docs"]) == (["flights/0@1: 2"], "quality/p.html")


def test_results_are_chosen_by_time_and_plan(catalog: Catalog) -> None:
    assert read_results(catalog, "flights") == []
    for day in range(3):
        append_results(catalog, [AuditRecord("flights", audit_of(f"p{day}", NOON + timedelta(days=day)), day)])
    recent = read_results(catalog, "flights", since=NOON + timedelta(days=1))
    assert [row["plan"] for row in recent] == ["p1", "p1", "p2", "p2"]
    assert {row["plan"] for row in read_results(catalog, "flights", plan="p0")} == {"p0"}


def test_an_audit_without_results_makes_no_table(catalog: Catalog) -> None:
    append_results(catalog, [AuditRecord("flights", Audit("p", "r", NOON, (), None), None)])
    assert not catalog.table_exists(RESULTS_TABLE)


def test_many_files_are_compacted_and_their_snapshots_expire_with_their_files(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, most in {"_MOST_FILES": 5, "_MOST_SNAPSHOTS": 8, "_KEPT_SNAPSHOTS": 2}.items():
        monkeypatch.setattr(module, name, most)
    for number in range(9):  # the sixth compacts, the eighth expires
        append_results(catalog, [AuditRecord("flights", audit_of(f"p{number}"), number)])
    table = catalog.load_table(RESULTS_TABLE)
    assert len(table.snapshots()) == 3
    assert len(list(table.scan().plan_files())) == len(list(tmp_path.rglob("*.parquet"))) == 4
    assert len(list(tmp_path.rglob("snap-*.avro"))) == 3
    assert len(read_results(catalog, "flights")) == 18


def test_results_are_found_after_the_snapshot_that_appended_them_has_expired(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, most in {"_MOST_SNAPSHOTS": 4, "_KEPT_SNAPSHOTS": 2}.items():
        monkeypatch.setattr(module, name, most)
    records = [AuditRecord("flights", audit_of(f"p{number}"), number) for number in range(6)]
    for record in [*records, *records]:
        append_results(catalog, [record])
    assert len(read_results(catalog, "flights")) == 12


def test_a_compaction_that_loses_against_an_append_changes_nothing(catalog: Catalog, tmp_path: Path) -> None:
    append_results(catalog, [AuditRecord("flights", audit_of("p1"), 1)])
    stale = catalog.load_table(RESULTS_TABLE)
    append_results(catalog, [AuditRecord("flights", audit_of("p2"), 2)])
    compact_results(stale)
    assert len(read_results(catalog, "flights")) == 4
    assert len(list(tmp_path.rglob("*.parquet"))) == 2


def test_snapshots_that_another_process_has_expired_are_left_to_it(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_KEPT_SNAPSHOTS", 2)
    for number in range(5):
        append_results(catalog, [AuditRecord("flights", audit_of(f"p{number}"), number)])
    both = [catalog.load_table(RESULTS_TABLE) for _ in range(2)]
    for table in both:
        expire_results(table)
    assert len(catalog.load_table(RESULTS_TABLE).snapshots()) == 2
    assert len(list(tmp_path.rglob("snap-*.avro"))) == 2
    assert len(read_results(catalog, "flights")) == 10


def test_snapshots_that_expired_before_their_files_were_removed_are_left_to_the_other_process(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_KEPT_SNAPSHOTS", 2)
    for number in range(5):
        append_results(catalog, [AuditRecord("flights", audit_of(f"p{number}"), number)])
    first, second = [catalog.load_table(RESULTS_TABLE) for _ in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(module, "remove_files", lambda *_: None)  # as between the commit and the removal
        expire_results(first)
        expire_results(second)
    assert len(catalog.load_table(RESULTS_TABLE).snapshots()) == 2


# --- a catalog that answers as it may -----------------------------------------------------------------------------


FAILURES = [
    CommitStateUnknownException("504 Gateway Time-out"),
    ServiceUnavailableError("503"),
    ServerError("500"),
    TooManyRequestsError("429"),
    BadRequestError("400"),
    ConnectionError("reset"),
    OSError("AWS Error SLOW_DOWN"),
    FileNotFoundError("a manifest is gone"),
    RuntimeError("not expected at all"),
]


@pytest.mark.parametrize("part", ["compact_results", "expire_results"])
@pytest.mark.parametrize("failure", FAILURES, ids=repr)
def test_upkeep_that_fails_fails_no_audit_and_is_shown_by_maintenance(
    catalog: Catalog,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    part: str,
    failure: Exception,
) -> None:
    def fail(_: object) -> None:
        raise failure

    for name, most in {"_MOST_FILES": 1, "_MOST_SNAPSHOTS": 1, "_KEPT_SNAPSHOTS": 1}.items():
        monkeypatch.setattr(module, name, most)
    monkeypatch.setattr(module, part, fail)
    for number in range(3):
        append_results(catalog, [AuditRecord("flights", audit_of(f"p{number}"), number)])
    assert len(read_results(catalog, "flights")) == 6
    assert "the results are stored, but the" in caplog.text
    assert str(failure) in caplog.text
    if part == "expire_results":  # a compaction leaves one file, which is not too many
        with pytest.raises((type(failure), CatalogUnavailable)):
            keep_results_small(catalog)


def test_snapshots_that_expired_although_the_catalog_answered_504_leave_no_files(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_KEPT_SNAPSHOTS", 2)
    for number in range(5):
        append_results(catalog, [AuditRecord("flights", audit_of(f"p{number}"), number)])
    commit = type(catalog).commit_table

    def committed_but_504(*arguments: Any) -> Any:
        commit(*arguments)
        raise CommitStateUnknownException("504 Gateway Time-out")

    table = catalog.load_table(RESULTS_TABLE)
    monkeypatch.setattr(type(catalog), "commit_table", committed_but_504)
    expire_results(table)
    assert len(catalog.load_table(RESULTS_TABLE).snapshots()) == 2
    assert len(list(tmp_path.rglob("snap-*.avro"))) == 2
    assert len(read_results(catalog, "flights")) == 10


@pytest.mark.parametrize("failure", FAILURES[:4], ids=repr)
@pytest.mark.parametrize("is_done", [True, False])
def test_an_append_whose_outcome_is_unknown_is_in_the_table_once(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, failure: Exception, is_done: bool
) -> None:
    append_results(catalog, [AuditRecord("flights", audit_of("p1"), 1)])
    commit, answers = type(catalog).commit_table, [failure]

    def unknown_once(*arguments: Any) -> Any:
        if answers:
            if is_done:
                commit(*arguments)
            raise answers.pop()
        return commit(*arguments)

    monkeypatch.setattr(type(catalog), "commit_table", unknown_once)
    append_results(catalog, [AuditRecord("flights", audit_of("p2"), 2)])
    assert len(read_results(catalog, "flights")) == 4


@pytest.mark.parametrize("failure", FAILURES[:4], ids=repr)
def test_a_catalog_out_of_order_is_a_retriable_error(failure: Exception) -> None:
    with pytest.raises(CatalogUnavailable, match="did not answer"), translate_catalog_errors("load t"):
        raise failure


@pytest.mark.parametrize("failure", [UnauthorizedError("401"), ForbiddenError("403"), AuthorizationExpiredError("419")])
def test_a_catalog_that_refuses_the_credentials_is_an_error_of_the_connection(failure: Exception) -> None:
    with pytest.raises(ConfigError, match="refuses the credentials"), translate_catalog_errors("load t"):
        raise failure


def test_a_compaction_with_unknown_outcome_keeps_its_file_until_the_table_moves_on(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        append_results(catalog, [AuditRecord("flights", audit_of(f"p{number}"), number)])
    commit, late = type(catalog).commit_table, []

    def on_its_way(*arguments: Any) -> Any:
        late.append(arguments)
        raise CommitStateUnknownException("504 Gateway Time-out")

    with monkeypatch.context() as patch:
        patch.setattr(type(catalog), "commit_table", on_its_way)
        compact_results(catalog.load_table(RESULTS_TABLE))
    [arguments] = late
    commit(*arguments)  # it arrives now
    assert len(read_results(catalog, "flights")) == 4
