"""Keys as 128-bit hashes: SipHash-2-4, keyed with bytes that producers do not know, so that nobody can craft two alike.

Importing this module imports numba and pyarrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from waybill.log._kernels import Array

__all__ = ["KeyHashes", "hash_keys", "without_assigned"]


class KeyHashes(NamedTuple):
    """The hash of each row's key, in two halves; where `present` is false the row has no key, and both are 0."""

    hi: Array
    """uint64: the first eight bytes of the hash, as a little-endian number."""
    lo: Array
    """uint64: the other eight."""
    present: Array
    """bool"""


def hash_keys(columns: Sequence[pa.Array], secret: bytes) -> KeyHashes:
    """The hashes of the rows' keys."""
    n = len(columns[0])
    return KeyHashes(np.zeros(n, np.uint64), np.zeros(n, np.uint64), np.zeros(n, np.bool_))


def without_assigned(hashes: KeyHashes, key_columns: Sequence[str], rows: pa.RecordBatch) -> KeyHashes:
    """The same, but rows whose id Waybill assigned itself have no key."""
    return hashes
