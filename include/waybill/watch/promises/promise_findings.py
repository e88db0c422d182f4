"""The findings about one promise of a stream, also if measuring it raises an exception."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from waybill.config.models import Config
from waybill.config.models.promises import PromiseName, PromiseSeverity
from waybill.watch.incidents.failures import Failures
from waybill.watch.incidents.finding import Finding, Verdict


def of_promise(
    config: Config, name: str, promise: PromiseName, read: Callable[[], list[Finding]], failures: Failures
) -> list[Finding]:
    """Return the findings about one promise.

    If measuring it raises, record the exception, and return unknown findings.
    """

    def not_measured(why: str) -> list[Finding]:
        return [replace(each, detail=why) for each in unknown(config, name, [promise])]

    return failures.measure(f"{name}: promise {promise}", read, not_measured)


def unknown(config: Config, name: str, promises: Sequence[str]) -> list[Finding]:
    """Return findings about promises that cannot be measured now."""
    deadlines = [str(deadline) for deadline in config.stream(name).promises.complete_by.deadlines]
    return [
        Finding(name, promise, Verdict.UNKNOWN, PromiseSeverity.WARNING, subject=subject)
        for promise in promises
        for subject in (deadlines if promise == PromiseName.COMPLETE_BY else [""])
    ]
