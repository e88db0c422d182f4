"""JSON documents that say by which version of Waybill they can be read: nodes of ZooKeeper, small objects of S3."""

from __future__ import annotations

import json
from typing import Any

from waybill.errors import GenerationConflict

__all__ = ["read_document"]


def read_document(
    data: bytes, version: int, where: str, *, remedy: str = "Upgrade this installation"
) -> dict[str, Any]:
    """The fields of a document whose `v` is at most `version`; `where` names it in errors.

    Raises `GenerationConflict`, with the remedy, for one of a newer version. Raises `ValueError`, `KeyError` or
    `TypeError` for what is no such document: what to do about that depends on what it is.
    """
    fields = json.loads(data)
    found = int(fields["v"])
    if found > version:
        raise GenerationConflict(
            f"{where} was written by a newer Waybill (document version {found}; this one reads up to {version}). "
            f"{remedy}"
        )
    return dict(fields)
