"""The alert about a quarantine: a run of which too much could not be parsed.

The run's rows are committed all the same: nothing is gained by holding back what could be read. What was committed says
how much went to quarantine and why, so that whoever looks after the run, and not only the run itself, can raise it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from pyiceberg.table.metadata import TableMetadata

from waybill.config import Config
from waybill.config.partitioning import QuarantineAlert
from waybill.errors import QuarantineRateExceeded
from waybill.partition.observed import REASONS_PROPERTY, Refused
from waybill.tables import catalog_of, load_tables

__all__ = ["QUARANTINED_PROPERTY", "ROWS_PROPERTY", "alert_of", "check_quarantine"]

ROWS_PROPERTY = "waybill.rows"
"""Of the snapshot of a run: how many rows it made of messages."""
QUARANTINED_PROPERTY = "waybill.quarantined"
"""Of the snapshot of a run: how many messages it put into quarantine."""

_REASONS = 3


def alert_of(stream: str, settings: QuarantineAlert, rows: int, quarantined: int, refused: Refused) -> str | None:
    """What is to be said about a run; None: it is as it should be."""
    messages = rows + quarantined
    if messages < settings.min_messages or not quarantined or quarantined <= settings.max_rate * messages:
        return None
    allowed = f"{(settings.max_rate * 100).normalize():f}%"
    reasons = [f"{kind}: {each.messages:,}, such as {each.example}" for kind, each in refused.most(_REASONS).items()]
    example = next((f" {each.example}" for each in refused.most(1).values()), "")
    return (
        f"{stream}: {quarantined:,} of {messages:,} messages ({quarantined / messages:.1%}) went to quarantine, more "
        f"than {allowed} (quarantine.max_rate); the run is committed. {'; '.join(reasons)}. Look at them: "
        f"waybill quarantine show {stream}{example}; once they can be read: waybill quarantine retry {stream}"
    )


def check_quarantine(config: Config, name: str, since: datetime) -> int:
    """Look at what was committed of stream `name` since a time; how many runs that were, if all are as they should be.

    It only reads, so it can be asked again. Raises `QuarantineRateExceeded` with an alert for each run that is not, and
    `CatalogUnavailable`.
    """
    stream = config.stream(name)
    with catalog_of(config) as catalog:
        tables = load_tables(catalog, stream)
        runs = [] if tables is None else _runs(tables.main.metadata, since)
    alerts = [
        alert_of(
            name,
            stream.quarantine,
            int(run.get(ROWS_PROPERTY, "0")),
            int(run[QUARANTINED_PROPERTY]),
            Refused.from_text(run[REASONS_PROPERTY]) if REASONS_PROPERTY in run else Refused(),
        )
        for run in runs
    ]
    raised = [alert for alert in alerts if alert is not None]
    if raised:
        raise QuarantineRateExceeded("\n".join(raised))
    return len(runs)


def _runs(metadata: TableMetadata, since: datetime) -> list[Mapping[str, str]]:
    """The properties of the snapshots that runs have committed since."""
    since_ms = int(since.timestamp() * 1000)
    recent = [s.summary.additional_properties for s in metadata.snapshots if s.summary and s.timestamp_ms >= since_ms]
    return [properties for properties in recent if QUARANTINED_PROPERTY in properties]
