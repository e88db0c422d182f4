"""The quarantine alert: it is raised about a run of which too many messages could not be parsed.

The run's rows are committed all the same: holding back rows that could be read would help no reader. The snapshot
stores how many messages went to quarantine and why, so that a later check can raise the alert too, not only the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from pyiceberg.table.metadata import TableMetadata

from waybill.config import Config
from waybill.config.partitioning import QuarantineAlert
from waybill.errors import QuarantineRateExceeded
from waybill.partition.statistics import QUARANTINED_PROPERTY, REASONS_PROPERTY, ROWS_PROPERTY, ReasonCounts
from waybill.tables import catalog_of, load_tables

__all__ = ["check_quarantine", "quarantine_alert"]

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


def check_quarantine(config: Config, name: str, since: datetime) -> int:
    """Check the runs that stream `name` has committed since then; return their number.

    It only reads, so it can be called again. Raises `QuarantineRateExceeded` with the alerts of all runs that have one,
    and `CatalogUnavailable`.
    """
    stream = config.stream(name)
    with catalog_of(config) as catalog:
        tables = load_tables(catalog, stream)
        runs = [] if tables is None else _committed_runs(tables.main.metadata, since)
    alerts = [
        quarantine_alert(
            name,
            stream.quarantine,
            int(run.get(ROWS_PROPERTY, "0")),
            int(run[QUARANTINED_PROPERTY]),
            ReasonCounts.from_text(run[REASONS_PROPERTY]) if REASONS_PROPERTY in run else ReasonCounts(),
        )
        for run in runs
    ]
    raised = [alert for alert in alerts if alert is not None]
    if raised:
        raise QuarantineRateExceeded("\n".join(raised))
    return len(runs)


def _committed_runs(metadata: TableMetadata, since: datetime) -> list[Mapping[str, str]]:
    """Return the properties of the snapshots that runs have committed since then."""
    since_ms = int(since.timestamp() * 1000)
    recent = [s.summary.additional_properties for s in metadata.snapshots if s.summary and s.timestamp_ms >= since_ms]
    return [properties for properties in recent if QUARANTINED_PROPERTY in properties]
