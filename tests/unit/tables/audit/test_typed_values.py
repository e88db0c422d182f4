"""Values of expectations are compared with columns of every type as the config means them, or refused by name."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from audited_table import COLUMNS, AuditedTable, catalog_in, stream_of
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from waybill.config.models.columns import ColumnKind, IsColumnType, column_types
from waybill.config.models.expectation_values import MismatchedValue, typed_arguments
from waybill.config.models.expectations import Expectation
from waybill.tables.audit.audit_run import run_audit
from waybill.tables.audit.expectations import evaluate
from waybill.tables.audit.staged_rows import StagedRows

TYPES = {
    "truth": "boolean",
    "small": "int",
    "large": "long",
    "single": "float",
    "twice": "double",
    "short_money": "decimal(12,2)",
    "long_money": "decimal(20,2)",
    "word": "string",
    "raw": "binary",
    "day": "date",
    "at": "timestamp",
    "text": "json",
}
VALUES: dict[str, tuple[list[Any], list[Any]]] = {
    # In the rows, and the same in YAML.
    "truth": ([True, False], [True, "false"]),
    "small": ([1, -2], [1, "-2"]),
    "large": ([2**60, 0], [2**60, "0"]),
    "single": ([0.1, 3.0], [0.1, 3]),
    "twice": ([0.1, 3.0], ["0.1", 3]),
    "short_money": ([Decimal("99.10"), Decimal("1.00")], [99.1, "1"]),
    "long_money": ([Decimal("99.10"), Decimal("123456789012345678.25")], [99.1, "123456789012345678.25"]),
    "word": (["a", "ü"], ["a", "ü"]),
    "raw": ([b"a", "ü".encode()], ["a", "ü"]),
    "day": ([date(2024, 1, 1), date(1, 1, 1)], ["2024-01-01", "0001-01-01"]),
    "at": (
        [datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, 12, 30, 0, 5, tzinfo=UTC)],
        ["2024-01-01", "2024-01-01T14:30:00.000005+02:00"],
    ),
    "text": (['{"a":1}', "2"], ['{"a":1}', "2"]),
}
LARGE = 1 << 28
BOUNDED = [name for name in TYPES if name not in ("truth", "text", "word", "raw")]


def kinds() -> dict[str, Any]:
    return {name: IsColumnType().parse(text) for name, text in TYPES.items()}


def test_every_type_of_column_is_tested() -> None:
    assert {kind.kind for kind in kinds().values()} == set(ColumnKind)
    assert set(VALUES) == set(TYPES)


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> StagedRows:
    table = AuditedTable(catalog_in(tmp_path_factory.mktemp("typed")), stream_of(columns=TYPES))
    rows = [{name: VALUES[name][0][at] for name in TYPES} for at in (0, 1)]
    return StagedRows(table.table, table.stage([*rows, {}]))


def result_of(staged: StagedRows, name: str, **arguments: Any) -> Any:
    [found] = evaluate(staged, [Expectation(name, arguments)], memory_bytes=LARGE, types=kinds()).results
    assert not str(found.observed).startswith("not evaluated"), found.observed
    return found


@pytest.mark.parametrize("column", TYPES)
@pytest.mark.parametrize(
    "name",
    [
        "expect_column_values_to_be_in_set",
        "expect_column_distinct_values_to_be_in_set",
        "expect_column_distinct_values_to_equal_set",
        "expect_column_distinct_values_to_contain_set",
    ],
)
def test_values_of_a_set_are_found(staged: StagedRows, name: str, column: str) -> None:
    assert result_of(staged, name, column=column, value_set=VALUES[column][1]).success
    if name.endswith("to_be_in_set"):
        only_one = result_of(staged, name, column=column, value_set=VALUES[column][1][:1])
        assert (only_one.success, only_one.unexpected_count) == (False, 1)


@pytest.mark.parametrize("column", TYPES)
def test_values_that_must_not_occur_are_found(staged: StagedRows, column: str) -> None:
    found = result_of(staged, "expect_column_values_to_not_be_in_set", column=column, value_set=VALUES[column][1])
    assert (found.success, found.unexpected_count) == (False, 2)


@pytest.mark.parametrize("column", BOUNDED)
@pytest.mark.parametrize("is_strict", [False, True])
def test_bounds_include_the_value_itself_unless_they_are_strict(
    staged: StagedRows, column: str, is_strict: bool
) -> None:
    values, written = VALUES[column]
    low, high = (written[values.index(each)] for each in (min(values), max(values)))
    bounds = {"column": column, "min_value": low, "max_value": high}
    if is_strict:
        bounds |= {"strict_min": True, "strict_max": True}
    if column == "long_money":
        bounds["max_value"] = 1e18  # a long decimal has no bound of that many digits
    found = result_of(staged, "expect_column_values_to_be_between", **bounds)
    assert found.unexpected_count == ((1 if column == "long_money" else 2) if is_strict else 0)
    assert result_of(staged, "expect_column_min_to_be_between", column=column, min_value=low).success


@pytest.mark.parametrize("column", sorted(set(TYPES) - set(BOUNDED)))
def test_bounds_of_text_bytes_and_booleans_are_refused(column: str) -> None:
    between = {"expect_column_values_to_be_between": {"column": column, "min_value": VALUES[column][1][0]}}
    with pytest.raises(ValidationError, match="only numbers, dates and times have bounds"):
        stream_of({"expectations": [between]}, columns=TYPES)


@pytest.mark.parametrize("column", TYPES)
def test_a_row_condition_as_a_section_selects_the_row(staged: StagedRows, column: str) -> None:
    condition = {
        "type": "comparison",
        "column": {"name": column},
        "operator": "==",
        "parameter": VALUES[column][1][0] if column != "long_money" else 1,
    }
    if column == "long_money":  # which has no whole number
        assert (
            result_of(
                staged, "expect_column_values_to_be_null", column=column, row_condition={**condition, "operator": ">"}
            ).unexpected_count
            == 2
        )
        return
    found = result_of(staged, "expect_column_values_to_be_null", column=column, row_condition=condition)
    assert found.unexpected_count == 1


def test_values_of_pairs_are_found(staged: StagedRows) -> None:
    pairs = [[VALUES["day"][1][at], VALUES["raw"][1][at]] for at in (0, 1)]
    assert result_of(
        staged,
        "expect_column_pair_values_to_be_in_set",
        column_A="day",
        column_B="raw",
        value_pairs_set=pairs,
        ignore_row_if="either_value_is_missing",
    ).success


def test_an_audit_converts_to_the_columns_of_its_stream(tmp_path: Path) -> None:
    in_set = {"expect_column_values_to_be_in_set": {"column": "day", "value_set": ["2024-01-01"]}}
    since = {"expect_column_values_to_be_between": {"column": "event_time", "min_value": "2020-01-01"}}
    stream = stream_of({"expectations": [in_set, since]}, columns={"day": "date"})
    table = AuditedTable(catalog_in(tmp_path), stream)
    given_rows = table.given(table.stage([{"day": date(2024, 1, 1)}]))

    class Services:
        class store:  # noqa: N801
            prefix = ""

            @staticmethod
            def replace(*_: object) -> None: ...

    audit = run_audit(Services, given_rows)  # type: ignore[arg-type]
    assert [(each.success, each.observed) for each in audit.results if each.check.startswith("expect_")] == [
        (True, "0 of 1 rows unexpected (0%)")
    ] * 2


# --- refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "value", "remedy"),
    [
        ("truth", "yes", "write true or false"),
        ("truth", 1, "write true or false"),
        ("small", 1.5, "write a whole number"),
        ("small", "one", "write a number"),
        ("large", True, "write a number"),
        ("twice", "nan", "write a number"),
        ("single", 1e300, "too large for a float"),
        ("short_money", "1,5", "write a number"),
        ("long_money", "9" * 500, "write a number"),
        ("word", 17, 'write it in quotes: "17"'),
        ("raw", 17, "write it in quotes"),
        ("day", "01.02.2024", "write it as 2026-11-25"),
        ("day", "2024-01-01T05:00:00", "write it as 2026-11-25"),
        ("day", 20240101, "write it as 2026-11-25"),
        ("at", "yesterday", "write it as 2026-11-25"),
        ("at", 1704067200, "write it as 2026-11-25"),
        ("at", ["2024-01-01"], "compared with no value"),
        ("tags", "a", "compared with no value"),
    ],
)
def test_a_value_that_no_value_can_be_equal_to_is_refused_when_the_config_loads(
    column: str, value: Any, remedy: str
) -> None:
    columns = TYPES | {"tags": "list<string>"}
    in_set = {"expect_column_values_to_be_in_set": {"column": column, "value_set": [value]}}
    with pytest.raises(ValidationError, match="is compared with the column") as raised:
        stream_of({"expectations": [in_set]}, columns=columns)
    assert remedy in str(raised.value)
    assert repr(column) in str(raised.value)


@pytest.mark.parametrize(
    "condition",
    [
        'day == "2024-01-01"',
        '"2024-01-01" < at',
        "long_money == 99.1",
        "single == 0.1",
        'raw == "a"',
        'truth == "true"',
        'small == "1"',
        "word == 1",
        'day in ["2024-01-01"]',
        "word == \"a\" and day != '2024-01-01'",
    ],
)
def test_a_text_condition_that_would_select_no_row_is_refused_with_the_section(condition: str) -> None:
    not_null = {"expect_column_values_to_not_be_null": {"column": "word", "row_condition": condition}}
    with pytest.raises(ValidationError, match="write the condition as a section"):
        stream_of({"expectations": [not_null]}, columns=TYPES)


@pytest.mark.parametrize(
    "condition", ['word == "a" and small > 0.5', "truth == True", "long_money > 5", "day == day", "word == None"]
)
def test_other_text_conditions_stay(condition: str) -> None:
    not_null = {"expect_column_values_to_not_be_null": {"column": "word", "row_condition": condition}}
    assert stream_of({"expectations": [not_null]}, columns=TYPES).quality.all_expectations


@given(st.sampled_from(sorted(TYPES)), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3)
))  # fmt: skip
def test_any_value_is_converted_or_refused_by_name(column: str, value: Any) -> None:
    for arguments in ({"value_set": [value]}, {"min_value": value, "strict_min": True}, {"max_value": value}):
        try:
            found = typed_arguments("expect_column_values_to_be_between", {"column": column, **arguments}, kinds())
        except MismatchedValue as error:
            refused = error
        else:
            assert found.keys() == {"column", *arguments}
            continue
        assert repr(column) in str(refused)
        assert refused.argument in arguments


@given(st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**15), max_value=10**15))
def test_the_bound_of_a_long_decimal_separates_it_from_its_neighbours(number: Decimal) -> None:
    def bound(**arguments: Any) -> Any:
        typed = typed_arguments("expect_column_values_to_be_between", {"column": "long_money", **arguments}, kinds())
        return Decimal(next(typed[name] for name in ("min_value", "max_value") if name in typed))

    cent = Decimal("0.01")
    try:
        assert number <= bound(max_value=str(number)) < number + cent
        assert number - cent < bound(min_value=str(number)) <= number
        assert number - cent < bound(max_value=str(number), strict_max=True) <= number
        assert number <= bound(min_value=str(number), strict_min=True) < number + cent
    except MismatchedValue:
        assert len(number.as_tuple().digits) > 15


def test_columns_of_the_fixture_are_unchanged() -> None:
    assert {name: str(kind) for name, kind in column_types(stream_of().columns).items()}.items() >= COLUMNS.items()
