"""The audit of a run: the checks of its staged files before they are published."""

from waybill.config.models.enums import Severity
from waybill.tables.audit.audit_run import run_audit
from waybill.tables.audit.decisions import DecisionKind, HoldDecision, find_decision, record_decision
from waybill.tables.audit.given import AuditInput
from waybill.tables.audit.record import find_audit, record_audit
from waybill.tables.audit.results import Audit, CheckResult
from waybill.tables.audit.results_table import AuditRecord, append_results, keep_results_small

__all__ = [
    "Audit",
    "AuditInput",
    "AuditRecord",
    "CheckResult",
    "DecisionKind",
    "HoldDecision",
    "Severity",
    "append_results",
    "find_audit",
    "find_decision",
    "keep_results_small",
    "record_audit",
    "record_decision",
    "run_audit",
]
