"""The record of a change to topics that a person ordered: who, when, why, and which steps."""

from __future__ import annotations

from typing import Any

from waybill.base.documents import Document, readable
from waybill.config.names import topic_change_key
from waybill.services.store import Store

_DOCUMENT = Document(dump=readable)


def record_change(store: Store, at_ms: int, *, by: str, reason: str, plan: dict[str, Any]) -> str:
    """Store the record of a change before it is executed, and return its key. `at_ms`: epoch ms."""
    while True:
        key = topic_change_key(store.prefix, at_ms)
        content = _DOCUMENT.write({"at": at_ms, "by": by, "reason": reason, **plan})
        if store.create_or_read_existing(key, content) is None:
            return key
        at_ms += 1  # another person ordered a change within the same millisecond
