"""The record of a change to topics that a person ordered: who, when, why, and which steps."""

from __future__ import annotations

import json
from typing import Any

from waybill.config.names import topic_change_key
from waybill.services.store import Store

_VERSION = 1


def record_change(store: Store, at_ms: int, *, by: str, reason: str, plan: dict[str, Any]) -> str:
    """Store the record of a change before it is executed, and return its key. `at_ms`: epoch ms."""
    while True:
        key = topic_change_key(store.prefix, at_ms)
        document = {"v": _VERSION, "at": at_ms, "by": by, "reason": reason, **plan}
        content = json.dumps(document, indent=1, ensure_ascii=False).encode()
        if store.create_or_read_existing(key, content) is None:
            return key
        at_ms += 1  # another person ordered a change within the same millisecond
