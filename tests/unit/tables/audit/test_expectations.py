"""Expectations over staged files: results, examples, parts of bounded size, and errors of the library."""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from audited_table import NOON, AuditedTable, catalog_in, stream_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from waybill.config.models.expectations import Expectation
from waybill.tables.audit import CheckResult, Severity
from waybill.tables.audit.data_docs import render_page
from waybill.tables.audit.expectations import evaluate, refused_expectations
from waybill.tables.audit.pandas_frame import pandas_frame
from waybill.tables.audit.staged_rows import StagedRows

LARGE, TINY = 1 << 30, 3000


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> StagedRows:
    """100 rows in ten files: every seventh has no delay, every third an unknown carrier, two by two one id."""
    table = AuditedTable(catalog_in(tmp_path_factory.mktemp("audit")))
    rows = [
        {
            "delay": n if n % 7 else None,
            "carrier": ["AA", "UA", "XX"][n % 3],
            "price": n * 1.5,
            "fee": Decimal("0.10") + n,
            "message_id": f"id{n // 2}",
        }
        for n in range(100)
    ]
    return StagedRows(table.table, [file for first in range(0, 100, 10) for file in table.stage(rows[first:][:10])])


def expectation(name: str, severity: Severity = Severity.WARNING, **arguments: Any) -> Expectation:
    return Expectation(name, arguments, severity)


def evaluated(staged: StagedRows, *expectations: Expectation, memory_bytes: int = LARGE) -> list[CheckResult]:
    return list(evaluate(staged, expectations, memory_bytes=memory_bytes).results)


BETWEEN = expectation(
    "expect_column_values_to_be_between", Severity.CRITICAL, column="delay", min_value=0, max_value=50
)


@pytest.mark.parametrize("memory_bytes", [LARGE, TINY])
def test_a_failed_expectation_names_counts_and_the_first_rows(staged: StagedRows, memory_bytes: int) -> None:
    [found] = evaluated(staged, BETWEEN, memory_bytes=memory_bytes)
    assert (found.success, found.severity, found.unexpected_count) == (False, Severity.CRITICAL, 42)
    assert found.observed == "42 of 100 rows unexpected (49.4%)"
    assert len(found.examples) == 10
    assert found.examples[:2] == ("flights/0@51: 51", "flights/0@52: 52")
    assert dict(found.arguments) == {"column": "delay", "min_value": 0, "max_value": 50}


@pytest.mark.parametrize("memory_bytes", [LARGE, TINY])
def test_mostly_is_judged_over_all_parts(staged: StagedRows, memory_bytes: int) -> None:
    some = [
        expectation("expect_column_values_to_be_in_set", column="carrier", value_set=["AA", "UA"], mostly=share)
        for share in (0.67, 0.68)
    ]
    found = evaluated(staged, *some, memory_bytes=memory_bytes)
    assert [each.success for each in found] == [True, False]
    assert [each.unexpected_count for each in found] == [33, 33]
    assert found[0].examples == ()


@pytest.mark.parametrize(
    "condition",
    [
        {"row_condition": 'carrier == "AA"', "condition_parser": "pandas"},
        {"row_condition": 'carrier == "AA"'},
        {"row_condition": 'col("carrier") == "AA"', "condition_parser": "great_expectations"},
        {
            "row_condition": {
                "type": "comparison",
                "column": {"name": "carrier"},
                "operator": "==",
                "parameter": "AA",
            }
        },
    ],
)
def test_a_row_condition_selects_the_rows_in_each_of_its_forms(staged: StagedRows, condition: dict[str, Any]) -> None:
    found = evaluated(staged, expectation("expect_column_values_to_be_null", column="price", **condition))[0]
    assert (found.success, found.unexpected_count) == (False, 34)
    assert found.examples[1] == "flights/0@3: price=4.5, carrier=AA"


def test_an_expectation_that_needs_all_rows_is_evaluated_over_all_parts_or_fails_with_the_remedy(
    staged: StagedRows,
) -> None:
    unique = expectation("expect_column_values_to_be_unique", column="message_id")
    median = expectation("expect_column_median_to_be_between", column="delay", min_value=0, max_value=50)
    found = evaluated(staged, unique, median)
    assert [each.success for each in found] == [False, True]
    assert found[0].examples[:2] == ("flights/0@0: id0", "flights/0@1: id0")
    refused = evaluated(staged, unique, memory_bytes=300)[0]
    assert not refused.success
    assert "not evaluated: it needs all rows at once" in str(refused.observed)
    assert "quality.memory" in str(refused.observed)


def test_rows_and_columns_are_counted_without_reading_rows(staged: StagedRows) -> None:
    found = evaluated(
        staged,
        expectation("expect_table_row_count_to_equal", value=100),
        expectation("expect_table_row_count_to_be_between", min_value=101),
        expectation("expect_table_column_count_to_equal", value=15),
        expectation("expect_table_columns_to_match_set", column_set=["delay"], exact_match=False),
        expectation("expect_column_to_exist", column="delay"),
    )
    assert [each.success for each in found] == [True, False, True, True, True]
    assert found[1].observed == "100"


def test_columns_of_two_are_named_in_the_examples(staged: StagedRows) -> None:
    pair = expectation("expect_column_pair_values_to_be_equal", column_A="price", column_B="delay")
    assert evaluated(staged, pair)[0].examples[1] == "flights/0@1: price=1.5, delay=1"


def test_decimals_are_compared_with_numbers_of_the_yaml(staged: StagedRows) -> None:
    fee = expectation("expect_column_values_to_be_between", column="fee", min_value=0.1, max_value=99.1)
    assert evaluated(staged, fee)[0].success


def test_an_expectation_that_the_library_cannot_evaluate_fails_and_says_why(staged: StagedRows) -> None:
    wrong = expectation("expect_column_values_to_be_between", column="carrier", min_value=3)
    refused = expectation("expect_column_values_to_be_between", column="delay")  # neither bound
    found = evaluated(staged, wrong, refused, BETWEEN)
    assert [each.success for each in found] == [False, False, False]
    assert str(found[0].observed).startswith("not evaluated: ")
    assert str(found[1].observed).startswith("not evaluated: ")
    assert found[2].unexpected_count == 42


def test_a_run_without_rows_passes_what_judges_rows(tmp_path: Path) -> None:
    rows = StagedRows(AuditedTable(catalog_in(tmp_path)).table, [])
    found = evaluated(rows, BETWEEN, expectation("expect_table_row_count_to_be_between", min_value=1))
    assert [each.success for each in found] == [True, False]


def test_a_column_that_is_newer_than_the_files_is_null_in_them(tmp_path: Path) -> None:
    table = AuditedTable(catalog_in(tmp_path))
    files = table.stage([{}])
    with table.table.update_schema() as update:
        from pyiceberg.types import LongType

        update.add_column("gate", LongType())
    found = evaluated(StagedRows(table.table, files), expectation("expect_column_values_to_not_be_null", column="gate"))
    assert (found[0].success, found[0].unexpected_count) == (False, 1)


def test_the_page_of_data_docs_shows_the_expectations(staged: StagedRows) -> None:
    mean = expectation("expect_column_mean_to_be_between", column="price", min_value=100)
    evaluation = evaluate(staged, [BETWEEN, mean], memory_bytes=LARGE)
    page = render_page("flights", "plan1", NOON, evaluation.raw).decode()
    assert "flights" in page
    assert "delay" in page
    assert "greater than or equal to" in page
    assert "74.25" in page  # the mean
    assert "great-expectations-web-assets" not in page  # the vendor's server is not told who looks at the page


def test_values_that_the_library_refuses_are_found_without_rows() -> None:
    wrong = expectation("expect_column_values_to_be_between", column="delay", min_value=[1])
    [refused] = refused_expectations([BETWEEN, wrong])
    assert refused.startswith("expect_column_values_to_be_between: ")
    assert "min_value" in refused


def test_all_expectations_of_the_config_are_evaluated(tmp_path: Path) -> None:
    quality = {"expectations": [{BETWEEN.name: dict(BETWEEN.arguments), "severity": "critical"}]}
    table = AuditedTable(catalog_in(tmp_path), stream_of(quality))
    rows = StagedRows(table.table, table.stage([{"delay": 51}]))
    [found] = evaluate(rows, table.stream.quality.all_expectations, memory_bytes=LARGE).results
    assert found.examples == ("flights/0@0: 51",)


DELAYS = st.lists(st.one_of(st.none(), st.integers(-3, 3)), min_size=1, max_size=12)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(DELAYS, st.sampled_from([0, 0.3, 0.5, 0.9, 1]))
def test_parts_of_one_row_give_the_result_of_all_rows(tmp_path: Path, delays: list[int | None], mostly: float) -> None:
    table = AuditedTable(catalog_in(Path(tempfile.mkdtemp(dir=tmp_path))))
    rows = [{"delay": delay, "price": float(n % 3), "carrier": "AB"[n % 2]} for n, delay in enumerate(delays)]
    staged = StagedRows(table.table, [file for row in rows for file in table.stage([row])])
    checked = [
        expectation("expect_column_values_to_be_between", column="delay", min_value=0, mostly=mostly),
        expectation("expect_column_values_to_not_be_null", column="delay", mostly=mostly),
        expectation(
            "expect_column_values_to_be_in_set", column="delay", value_set=[1, 2], row_condition='carrier == "A"'
        ),
        expectation("expect_column_pair_values_to_be_equal", column_A="delay", column_B="price", mostly=mostly),
        expectation("expect_column_values_to_be_unique", column="delay"),
    ]
    at_once = evaluated(staged, *checked)
    in_parts = evaluated(staged, *checked, memory_bytes=600)
    assert [(r.success, r.unexpected_count, r.examples) for r in in_parts] == [
        (r.success, r.unexpected_count, r.examples) for r in at_once
    ]
    known = [delay for delay in delays if delay is not None]
    good = sum(delay >= 0 for delay in known)
    assert at_once[0].success == (not known or good / len(known) >= mostly)
    assert at_once[1].unexpected_count == len(delays) - len(known)
    assert at_once[4].success == (len(set(known)) == len(known))


INTEGERS = st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), max_size=20)


@settings(max_examples=50)
@given(INTEGERS, st.sampled_from([pa.int32(), pa.int64()]))
def test_integers_stay_exact_in_pandas(values: list[int | None], kind: pa.DataType) -> None:
    if kind == pa.int32():
        values = [None if value is None else value >> 32 for value in values]
    series = pandas_frame(pa.table({"x": pa.array(values, kind)}), ["x"])["x"]
    assert [None if series.isna()[n] else int(series[n]) for n in range(len(values))] == values


@settings(max_examples=50)
@given(st.lists(st.one_of(st.none(), st.floats(allow_nan=False)), max_size=20))
def test_floats_stay_exact_in_pandas(values: list[float | None]) -> None:
    series = pandas_frame(pa.table({"x": pa.array(values, pa.float64())}), ["x"])["x"]
    assert [None if math.isnan(value) else value for value in series] == values


def test_a_stream_without_expectations_does_not_import_the_library() -> None:
    script = (
        "import sys, waybill.tables.audit, waybill.tables.audit.audit_run, waybill.config.models\n"
        "import waybill.interfaces.cli.app\n"
        "assert 'great_expectations' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=280)


@pytest.mark.deep
def test_the_library_is_imported_without_modules_that_an_audit_does_not_use() -> None:
    script = (
        "import sys\n"
        "from waybill.tables.audit.library import import_great_expectations\n"
        "import_great_expectations()\n"
        "import great_expectations\n"
        "assert not {'altair.vegalite', 'scipy.stats._stats_py', 'pyspark.ml'} & sys.modules.keys()\n"
        "import altair\n"
        "assert altair.Chart  # loaded at its first use"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=280)
