"""Unexpected exceptions that a measurement collects, so that its other elements go on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from waybill.base.errors import WaybillError, expected
from waybill.config.models.promises import PromiseSeverity
from waybill.config.models.quantities import counted
from waybill.watch.incidents.finding import MEASURED, Finding, Verdict

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_NAMED = 3
"""The number of errors in the detail of a finding; its names hold all of them."""


class Failures:
    """The exceptions that were caught, by measured element: a promise, a group, a broker, a topic-partition."""

    def __init__(self) -> None:
        self._found: dict[str, WaybillError] = {}

    @property
    def texts(self) -> Sequence[str]:
        """Return the message of each exception, with its class and place in the code."""
        return [str(error) for error in self._found.values()]

    def caught(self, element: str, error: Exception) -> WaybillError:
        """Record an exception that ended the work on an element, log it with its stack trace, and return its text."""
        logger.error("%s could not be measured", element, exc_info=error)
        found = self._found[element] = expected(element, error)
        return found

    def measure(self, element: str, read: Callable[[], _T], default: Callable[[str], _T]) -> _T:
        """Return the result of `read`.

        If it raises, record the exception, and return the result of `default` for its text.

        A retriable error is raised again: a service does not answer, which affects more than this element.
        """
        try:
            return read()
        except Exception as error:
            if isinstance(error, WaybillError) and error.retriable:
                raise
            return default(str(self.caught(element, error)))


def measured_finding(stream: str, errors: Sequence[str] = (), *, subject: str = "") -> Finding:
    """Return a finding that states whether all promises of a stream could be measured.

    An empty `stream`: the promises belong to no single stream, and `subject` names their subject. `errors`: the texts
    of the exceptions.
    """
    more = f"; and {len(errors) - _NAMED} more" if len(errors) > _NAMED else ""
    return Finding(
        stream=stream,
        promise=MEASURED,
        subject=subject,
        verdict=Verdict.BROKEN if errors else Verdict.KEPT,
        severity=PromiseSeverity.CRITICAL,
        figure=f"{counted(len(errors), 'measurement')} failed" if errors else "all measured",
        limit="none fails",
        detail="; ".join(errors[:_NAMED]) + more,
        names=tuple(errors),
        command="waybill watch --dry-run",
        value=len(errors),
    )
