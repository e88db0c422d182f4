"""The audit's object beside the plan: created if absent, and never changed."""

from __future__ import annotations

from waybill.config.names import audit_key
from waybill.services.store import Store
from waybill.tables.audit.results import Audit


def find_audit(store: Store, plan_key: str) -> Audit | None:
    """Return the recorded audit of the plan with the key `plan_key`, or None if it was not audited yet.

    Raises `DocumentTooNew`, `DocumentDamaged` or `StoreUnavailable`.
    """
    key = audit_key(plan_key)
    found = store.read_if_exists(key)
    return None if found is None else Audit.from_json(key, found)


def record_audit(store: Store, plan_key: str, audit: Audit) -> Audit:
    """Record the audit of a plan, and return it; if a rival has recorded its own first, return the rival's.

    Raises as `find_audit` does.
    """
    key = audit_key(plan_key)
    existing = store.create_or_read_existing(key, audit.to_json())
    return audit if existing is None else Audit.from_json(key, existing)
