"""The result of an audit, for each expectation and each built-in check.

The result is a document beside the plan, created if absent (`waybill.tables.audit.record`): a retry or a rival finds
it, and does not audit again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar

from waybill.base.documents import As, Document, Stored
from waybill.config.models.enums import Severity

MAX_EXAMPLES = 10
"""The most examples of one result."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one expectation or one built-in check."""

    check: str
    """The name of an expectation of Great Expectations, or of a built-in check."""
    arguments: Mapping[str, Any]
    severity: Severity
    success: bool
    observed: str | None = None
    """The observed value as text; JSON if it is not a text by itself."""
    unexpected_count: int | None = None
    examples: tuple[str, ...] = ()
    """`topic/partition@offset: value`, at most `MAX_EXAMPLES`."""

    def __str__(self) -> str:
        written = ", ".join(f"{name}={_text(value)}" for name, value in self.arguments.items())
        observed = "" if self.observed is None else f": {self.observed}"
        count = "" if self.unexpected_count is None else f" ({self.unexpected_count:,} unexpected)"
        return f"{self.check}({written}){observed}{count}"


def _result(fields: Mapping[str, Any]) -> CheckResult:
    return CheckResult(**{**fields, "severity": Severity(fields["severity"]), "examples": tuple(fields["examples"])})


_RESULTS = As("", lambda results: tuple(map(_result, results)), lambda results: [asdict(each) for each in results])


@dataclass(frozen=True, slots=True)
class Audit(Stored):
    """The results of one audit, which is about the staged files of one plan."""

    DOCUMENT: ClassVar = Document(
        "audit {where} cannot be read ({error}): remove the object, and run again",
        name="audit {where}",
        remedy="Let the Waybill that wrote it publish the plan, or remove the object, and run again",
    )

    plan: str
    """The id of the plan."""
    run_id: Annotated[str, As("run")]
    """The run that staged the files."""
    at: datetime
    results: Annotated[tuple[CheckResult, ...], _RESULTS]
    data_docs: str | None = None
    """The key of the page of Great Expectations' Data Docs; None if the stream has no expectations."""
    generation: int = 1
    """The generation of the stream."""

    @property
    def failed_critical(self) -> tuple[CheckResult, ...]:
        """The failed results that hold the run."""
        return self._failed(Severity.CRITICAL)

    @property
    def warnings(self) -> tuple[CheckResult, ...]:
        """The failed results that raise an alert, and let the run be published."""
        return self._failed(Severity.WARNING)

    def _failed(self, severity: Severity) -> tuple[CheckResult, ...]:
        return tuple(result for result in self.results if not result.success and result.severity is severity)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
