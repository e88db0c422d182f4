"""The keys of decisions about the Kafka cluster."""

from __future__ import annotations

from waybill.names.segments import join_segments

__all__ = ["topic_change_key", "topic_changes_prefix"]


def topic_changes_prefix(prefix: str) -> str:
    """Return the prefix of all records of changes to topics. Their keys sort by time."""
    return join_segments(prefix, "kafka", "changes", "")


def topic_change_key(prefix: str, at_ms: int) -> str:
    """Return the key of the record of a change that a person ordered at a time. Epoch ms."""
    return f"{topic_changes_prefix(prefix)}{at_ms:020d}.json"
