"""The keys of the probe of the store: its stored result, and the objects that it creates and removes."""

from __future__ import annotations

from waybill.config.names.segments import Folder, check_token, own_key


def probe_result_key(prefix: str) -> str:
    """Return the key of the stored result of the newest probe that found a store fit."""
    return own_key(prefix, Folder.PROBE, "store.json")


def probes_prefix(prefix: str) -> str:
    """Return the prefix of the objects of all probes. A probe removes its objects at its end."""
    return own_key(prefix, Folder.PROBE, "objects", "")


def probe_objects_prefix(prefix: str, token: str) -> str:
    """Return the prefix of the objects of one probe. `token`: 32 hexadecimal digits that the probe has chosen."""
    return f"{probes_prefix(prefix)}{check_token(token)}/"
