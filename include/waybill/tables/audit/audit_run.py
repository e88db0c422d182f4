"""An audit: the built-in checks, and the stream's expectations, over the staged files of a plan."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime

from waybill.config.models.columns import column_types
from waybill.services.store import Store
from waybill.tables.audit.built_in import built_in_results
from waybill.tables.audit.given import AuditInput
from waybill.tables.audit.results import Audit, CheckResult
from waybill.tables.audit.staged_rows import StagedRows
from waybill.tables.iceberg import translate_storage_errors
from waybill.tables.staging.driver import OnStep
from waybill.tables.staging.services import StagingServices

logger = logging.getLogger(__name__)


def run_audit(
    services: StagingServices,
    given: AuditInput,
    *,
    on_step: OnStep = lambda _: None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Audit:
    """Check the staged files of a plan and return the results, which are not stored yet.

    A page of Data Docs is stored if the stream has expectations; `on_step` is then called with `data_docs_stored`.

    Raises `StoreUnavailable` when a file cannot be read, `DamagedFile` when one is not valid Parquet.
    """
    at = now()
    with translate_storage_errors():
        results = built_in_results(given)
        page = None
        if given.stream.quality.all_expectations:
            found, page = _evaluate(services.store, given, at)
            results += found
            on_step("data_docs_stored")
    audit = Audit(given.plan_id, given.run_id, at, results, page, given.stream.generation)
    failed = [result for result in results if not result.success]
    logger.info(
        "audit of %s, plan %s: %d checks, %d failed", given.stream_name, given.plan_id, len(results), len(failed)
    )
    for result in failed:
        logger.warning("audit of %s: %s: %s", given.stream_name, result.severity, result)
    return audit


def _evaluate(store: Store, given: AuditInput, at: datetime) -> tuple[tuple[CheckResult, ...], str | None]:
    """Return the results of the stream's expectations, and the key of their page if it has one."""
    # Streams without expectations do not import Great Expectations.
    from waybill.tables.audit.data_docs import render_page, store_page
    from waybill.tables.audit.expectations import evaluate

    quality = given.stream.quality
    rows = StagedRows(given.table, given.table_files)
    types = column_types(given.stream.columns)
    evaluation = evaluate(rows, quality.all_expectations, memory_bytes=quality.memory, types=types)
    try:
        page = render_page(given.stream_name, given.plan_id, at, evaluation.raw)
        return evaluation.results, store_page(store, given.stream_name, given.plan_id, page)
    except Exception:  # a page that cannot be rendered or stored must not stop the stream: the results are complete
        logger.exception("audit of %s: the page of Data Docs could not be rendered and stored", given.stream_name)
        return evaluation.results, None
