"""Versioned JSON documents: ZooKeeper nodes, small objects of S3, snapshot properties of tables.

Each document's field `v` is the version of its layout. This module holds the only comparison of a stored version with
the versions that this Waybill reads.
"""

from __future__ import annotations

import json
import math
from typing import Any

from waybill.base.errors import DocumentTooNew


def read_document(
    data: bytes | str, version: int, where: str, *, oldest: int = 1, remedy: str = "Upgrade this installation"
) -> dict[str, Any]:
    """Return the fields of a document whose `v` is from `oldest` to `version`. `where` names it in errors.

    Raises `DocumentTooNew`, with the remedy, if `v` is above `version`. Raises `ValueError`, `KeyError` or `TypeError`
    if the bytes are no such document or `v` is below `oldest`: the caller turns these into an error of its own, since
    the remedy depends on the document.
    """
    try:
        fields = dict(json.loads(data, parse_float=_finite))
        found = int(fields["v"])
    except (RecursionError, OverflowError) as error:  # nested too deeply, and {"v": Infinity}
        raise ValueError(f"{type(error).__name__}: {error}") from None
    if found > version:
        raise DocumentTooNew(
            f"{where} was written by a newer Waybill (document version {found}; this one reads up to {version}). "
            f"{remedy}"
        )
    if found < oldest:
        raise ValueError(f"document version {found} is older than {oldest}, the oldest that this Waybill reads")
    return fields


def _finite(written: str) -> float:
    """Return a number with a fraction. 1e999 would be infinity, which raises OverflowError where an int is read."""
    number = float(written)
    if math.isinf(number):
        raise ValueError(f"{written[:50]} is no number that a document holds")
    return number
