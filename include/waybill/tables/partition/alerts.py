"""Alerts about runs that are published: too many messages in quarantine, and warnings of the audit.

The rows of such a run are still published: to hold back readable rows would not help any reader, unless a check is
critical (`waybill.tables.partition.publication`). The data for the alerts is stored with the run, so that a later check
can raise them too: the snapshot has the counts of the quarantine, and the audit is an object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from pyiceberg.table.metadata import TableMetadata

from waybill.base.errors import AlertsRaised
from waybill.config.models import Config
from waybill.config.models.partition_by import QuarantineAlert
from waybill.config.models.quality import CheckName
from waybill.config.names import plans_prefix
from waybill.services.store import Store
from waybill.tables.audit import Audit, CheckResult, find_audit
from waybill.tables.iceberg import catalog_of, load_tables
from waybill.tables.iceberg.state import PLAN_PROPERTY, ancestry
from waybill.tables.partition.statistics import QUARANTINED_PROPERTY, REASONS_PROPERTY, ROWS_PROPERTY, ReasonCounts

_REASONS = 3


def quarantine_alert(
    stream: str, settings: QuarantineAlert, rows: int, quarantined: int, reasons: ReasonCounts
) -> str | None:
    """Return the alert about a run, or None if the share of quarantined messages is within `settings`."""
    messages = rows + quarantined
    if messages < settings.min_messages or not quarantined or quarantined <= settings.max_rate * messages:
        return None
    allowed = f"{(settings.max_rate * 100).normalize():f}%"
    listed = [
        f"{kind}: {each.messages:,}, such as {each.example}" for kind, each in reasons.most_frequent(_REASONS).items()
    ]
    example = next((f" {each.example}" for each in reasons.most_frequent(1).values()), "")
    return (
        f"{stream}: {quarantined:,} of {messages:,} messages ({quarantined / messages:.1%}) went to quarantine, more "
        f"than {allowed} (quarantine.max_rate); the run is committed. {'; '.join(listed)}. Look at them: "
        f"waybill quarantine show {stream}{example}; once they can be read: waybill quarantine retry {stream}"
    )


def audit_alert(stream: str, warnings: Sequence[CheckResult]) -> str | None:
    """Return the alert about the failed warnings of an audit; None if there are none."""
    if not warnings:
        return None
    failed = "; ".join(str(result) for result in warnings)
    return f"{stream}: the run is published, and its audit has warnings: {failed}. See `waybill quality show {stream}`"


def run_alerts(
    stream: str, settings: QuarantineAlert, rows: int, quarantined: int, reasons: ReasonCounts, audit: Audit | None
) -> tuple[str, ...]:
    """Return all alerts about a published run."""
    quarantine = quarantine_alert(stream, settings, rows, quarantined, reasons)
    warnings = () if audit is None else audit.warnings
    if quarantine is not None:  # it includes the reasons and examples
        warnings = tuple(result for result in warnings if result.check != CheckName.QUARANTINE_SHARE)
    found = (quarantine, audit_alert(stream, warnings))
    return tuple(alert for alert in found if alert is not None)


def check_alerts(config: Config, name: str, since: datetime) -> int:
    """Check the runs that stream `name` has published since `since`; return their number.

    It only reads, so it can be called again. Raises `AlertsRaised` with the alerts of all runs that have one, and one
    of the retriable `CatalogUnavailable` and `StoreUnavailable`.
    """
    stream = config.stream(name)
    with catalog_of(config) as catalog:
        tables = load_tables(catalog, stream)
    if tables is None:
        return 0
    uuid = str(tables.main.metadata.table_uuid)
    plans = plans_prefix(config.storage.prefix, name, stream.generation, uuid)
    runs = _published_runs(tables.main.metadata, since)
    alerts: list[str] = []
    with Store.of(config.storage) as store:
        for run in runs:
            reasons = ReasonCounts.from_text(run[REASONS_PROPERTY]) if REASONS_PROPERTY in run else ReasonCounts()
            audit = find_audit(store, f"{plans}{run[PLAN_PROPERTY]}.json")
            rows, quarantined = int(run.get(ROWS_PROPERTY, "0")), int(run[QUARANTINED_PROPERTY])
            alerts += run_alerts(name, stream.quarantine, rows, quarantined, reasons, audit)
    if alerts:
        raise AlertsRaised("\n".join(alerts))
    return len(runs)


def _published_runs(metadata: TableMetadata, since: datetime) -> list[Mapping[str, str]]:
    """Return the properties of the snapshots of `main` that runs have written since then, newest first."""
    since_ms = int(since.timestamp() * 1000)
    recent = (s.summary.additional_properties for s in ancestry(metadata) if s.summary and s.timestamp_ms >= since_ms)
    return [properties for properties in recent if QUARANTINED_PROPERTY in properties]
