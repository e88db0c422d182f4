"""Findings about the config itself: streams that are left out, and a file that does not load."""

from __future__ import annotations

from collections.abc import Sequence

from waybill.config.models.last_valid import WatchConfig
from waybill.config.models.promises import PromiseSeverity
from waybill.watch.incidents.finding import CONFIG, Finding, Verdict
from waybill.watch.incidents.incident import IncidentBook


def config_findings(loaded: WatchConfig) -> list[Finding]:
    """Return a finding about the config as a whole, and one about each stream."""
    found = [_finding("", loaded.error and f"this watch works with {loaded.source}. {loaded.error}")]
    found += [_finding(name, error) for name, error in loaded.config.broken.items()]
    return [*found, *(_finding(name, "") for name in loaded.config.streams)]


def unwatched_findings(loaded: WatchConfig, book: IncidentBook, found: Sequence[Finding]) -> list[Finding]:
    """Return an unknown finding for each open incident that cannot be measured because the config has an error.

    Without this finding, the rules of incidents would assume that the stream was removed, and would resolve the
    incident. If the config does not load at all, no stream counts as removed.
    """
    known = {each.key for each in found}
    return [
        Finding(each.stream, each.promise, Verdict.UNKNOWN, each.severity, subject=each.subject)
        for each in book.incidents
        if each.is_open
        and (each.stream, each.promise, each.subject) not in known
        and (not loaded.is_whole or each.stream in loaded.config.broken)
    ]


def _finding(stream: str, error: str) -> Finding:
    lines = error.splitlines()
    return Finding(
        stream=stream,
        promise=CONFIG,
        verdict=Verdict.BROKEN if error else Verdict.KEPT,
        severity=PromiseSeverity.CRITICAL,
        figure=("the stream is left out" if stream else "the config does not load") if error else "valid",
        limit="valid",
        detail=" ".join(lines[:3]) + (f" … and {len(lines) - 3} more lines" if len(lines) > 3 else ""),
        names=tuple(lines),
        command="waybill config check",
    )
