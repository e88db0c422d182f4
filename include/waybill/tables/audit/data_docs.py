"""The page of Great Expectations' Data Docs about one audit: static HTML in the bucket."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from waybill.config.names import data_docs_key
from waybill.services.store import Store

if TYPE_CHECKING:
    from great_expectations.core.expectation_validation_result import ExpectationValidationResult

_VENDOR_IMAGE = re.compile(r"https://great-expectations-web-assets\.[^\"')]*")
"""Logos, which are removed: a request for them would show their server that a person reads the page."""


def render_page(stream: str, plan: str, at: datetime, results: Sequence[ExpectationValidationResult]) -> bytes:
    """Return the page as HTML. Great Expectations must have been imported."""
    from great_expectations.core import ExpectationSuiteValidationResult, RunIdentifier
    from great_expectations.render.renderer import ValidationResultsPageRenderer
    from great_expectations.render.view import DefaultJinjaPageView
    from great_expectations.util import convert_to_json_serializable

    for result in results:  # the renderers do not support the numbers of numpy, some of which pass the first conversion
        result.result = json.loads(json.dumps(convert_to_json_serializable(result.result)))
    successful = sum(bool(result.success) for result in results)
    whole = ExpectationSuiteValidationResult(
        success=successful == len(results),
        results=list(results),
        suite_name=stream,
        statistics={
            "evaluated_expectations": len(results),
            "successful_expectations": successful,
            "unsuccessful_expectations": len(results) - successful,
            "success_percent": 100 * successful / len(results) if results else None,
        },
        meta={"run_id": RunIdentifier(run_name=plan, run_time=at), "validation_time": at.isoformat()},
    )
    page = str(DefaultJinjaPageView().render(ValidationResultsPageRenderer().render(whole)))
    return _VENDOR_IMAGE.sub("", page).encode()


def store_page(store: Store, stream: str, plan: str, page: bytes) -> str:
    """Store the page, and return its key. Raises `StoreUnavailable`."""
    key = data_docs_key(store.prefix, stream, plan)
    store.replace(key, page, "text/html; charset=utf-8")
    return key
