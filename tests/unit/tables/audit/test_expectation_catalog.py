"""The catalog of expectations in the package equals the Great Expectations that is installed."""

from __future__ import annotations

from waybill.config.models.expectations import CATALOG_PATH, catalog_version, expectation_names
from waybill.tables.audit.expectation_catalog import catalog_text
from waybill.tables.audit.expectations import _COLUMNS_ONLY, _EACH_ROW


def test_the_catalog_equals_the_installed_library() -> None:
    """Update it with: python -m waybill.tables.audit.expectation_catalog"""
    assert CATALOG_PATH.read_text(encoding="utf-8") == catalog_text()
    assert catalog_version() == "1.24.1"


def test_the_kinds_of_expectations_are_in_the_catalog() -> None:
    assert set(expectation_names()) >= _EACH_ROW | _COLUMNS_ONLY
