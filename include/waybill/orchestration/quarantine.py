"""What a DAG's form asks of a stream's quarantine."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from waybill.config import Config
from waybill.quarantine import Choice, retry_quarantine

__all__ = ["retry_as_asked"]

log = logging.getLogger(__name__)


def retry_as_asked(config: Config, stream: str, form: Mapping[str, Any]) -> dict[str, Any]:
    """Retry what the form of `quarantine_retry__<stream>` means, log what came of it, and return the report.

    Raises what `retry_quarantine` raises.
    """
    choice = Choice.parse(
        reasons=form["reasons"],
        targets=form["topic_partitions"],
        first_offset=form["first_offset"],
        last_offset=form["last_offset"],
    )
    report = retry_quarantine(config, stream, choice, dry_run=form["dry_run"])
    for line in report.lines():
        log.info("%s", line)
    return report.document()
