"""The keys of the watch: what earlier watches saw, and the copy of the incidents."""

from __future__ import annotations

from waybill.names.segments import join_segments

__all__ = ["incidents_key", "samples_key", "table_states_key"]


def incidents_key(prefix: str) -> str:
    """Return the key of the copy of the incidents, which is read while ZooKeeper does not answer."""
    return join_segments(prefix, "watch", "incidents.json")


def samples_key(prefix: str) -> str:
    """Return the key of the offsets that the watch has seen."""
    return join_segments(prefix, "watch", "samples.json.gz")


def table_states_key(prefix: str) -> str:
    """Return the key of the state of the tables, as the watch has read it."""
    return join_segments(prefix, "watch", "tables.json.gz")
