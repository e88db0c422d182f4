"""The keys of objects that replay requests store in the archive's bucket."""

from __future__ import annotations

from waybill.config.names.segments import Folder, own_key


def replay_prefix(prefix: str, request_id: str) -> str:
    """Return the prefix of the objects of a request; `prefix` is the archive's."""
    return own_key(prefix, Folder.REPLAYS, request_id) + "/"


def replay_part_prefix(prefix: str, request_id: str) -> str:
    """Return the prefix of the keys of delivered parts, which a number and an extension follow."""
    return f"{replay_prefix(prefix, request_id)}part-"


def replay_manifest_key(prefix: str, request_id: str) -> str:
    """Return the key of the list of delivered parts."""
    return f"{replay_prefix(prefix, request_id)}manifest.json"


def replay_seen_prefix(prefix: str, request_id: str) -> str:
    """Return the prefix of the ids of messages that were found; they are removed at the request's end."""
    return f"{replay_prefix(prefix, request_id)}seen/"


def replay_seen_key(prefix: str, request_id: str, found: int, claim: int) -> str:
    """Return the key of the ids that a claim stored when the request had found this number of messages."""
    return f"{replay_seen_prefix(prefix, request_id)}{found:020}-{claim:06}"
