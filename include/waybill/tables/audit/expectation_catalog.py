"""Make the catalog of expectations that the config is checked against, from the Great Expectations that is installed.

python -m waybill.tables.audit.expectation_catalog     # writes include/waybill/config/models/expectation_catalog.json
"""

from __future__ import annotations

import json
from typing import Any

from waybill.config.models.expectations import CATALOG_PATH

_COLUMN_ARGUMENTS = ("column", "column_A", "column_B", "column_list", "column_set")
_NOT_ARGUMENTS = frozenset(
    # Fields that identify or describe an expectation, fields that the audit sets, and `severity`, which is beside the
    # name.
    ["batch_id", "catch_exceptions", "id", "rendered_content", "result_format", "severity", "windows"]
)
_WRITTEN_IN_SQL = ("expect_query_results_to_match_comparison", "unexpected_rows_expectation")
_OTHER_TABLES = "compares with another table, and an audit has only the rows of one run"
_SQL = "needs a SQL database, and an audit evaluates expectations with pandas"


def catalog() -> dict[str, Any]:
    """Return the catalog of the Great Expectations that is installed, which it imports."""
    import great_expectations
    from great_expectations.expectations import core
    from great_expectations.expectations.expectation import Expectation

    found: dict[str, Any] = {}
    unsupported: dict[str, str] = {}
    kinds: list[Any] = [
        each for each in vars(core).values() if isinstance(each, type) and issubclass(each, Expectation)
    ]
    for kind in kinds:
        if kind.expectation_type == "expect_table_row_count_to_equal_other_table":
            unsupported[kind.expectation_type] = _OTHER_TABLES
        elif not _runs_with_pandas(kind):
            unsupported[kind.expectation_type] = _SQL
        else:
            found[kind.expectation_type] = _entry(kind)
    return {
        "version": great_expectations.__version__,
        "expectations": dict(sorted(found.items())),
        "unsupported": dict(sorted(unsupported.items())),
    }


def catalog_text() -> str:
    """Return the content of the catalog's file."""
    return json.dumps(catalog(), indent=1) + "\n"


def _runs_with_pandas(kind: Any) -> bool:
    """Return whether the metric of an expectation is implemented for pandas.

    Expectations about SQL queries have no such metric.
    """
    from great_expectations.execution_engine import PandasExecutionEngine
    from great_expectations.expectations.registry import get_metric_provider

    if kind.expectation_type in _WRITTEN_IN_SQL:
        return False
    metric = getattr(kind, "map_metric", None)
    if metric is None:
        return True
    try:
        get_metric_provider(f"{metric}.condition", PandasExecutionEngine())
    except Exception:  # GX raises MetricProviderError, and KeyError in some cases
        return False
    return True


def _entry(kind: Any) -> dict[str, list[str]]:
    fields = {name: field for name, field in kind.__fields__.items() if name not in _NOT_ARGUMENTS}
    return {
        "arguments": sorted(fields),
        "required": sorted(name for name, field in fields.items() if field.required),
        "columns": [name for name in _COLUMN_ARGUMENTS if name in fields],
    }


if __name__ == "__main__":
    CATALOG_PATH.write_text(catalog_text(), encoding="utf-8")
