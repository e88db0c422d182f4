"""Keys as 128-bit hashes: SipHash-2-4, keyed with bytes that producers do not know, so that nobody can craft two alike.

Importing this module imports numba and pyarrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from waybill.dedup._kernels import clear_assigned, siphash128
from waybill.formats.columns import BinaryColumn
from waybill.records._kernels import Array

__all__ = ["KeyHashes", "hash_keys", "without_assigned"]


class KeyHashes(NamedTuple):
    """The hash of each row's key, in two halves. Where `present` is false the row has no key, and they mean nothing."""

    hi: Array
    """uint64: the first eight bytes of the hash, as a little-endian number."""
    lo: Array
    """uint64: the other eight."""
    present: Array
    """bool"""


def hash_keys(columns: Sequence[pa.Array], secret: bytes) -> KeyHashes:
    """The hashes of the rows' keys: SipHash-2-4 with 128 bits, keyed with the 16 bytes of `secret`.

    `columns` are of one length, in the order in which the key names them. What is hashed are the bytes of text (UTF-8)
    and binary, and of anything else those of the text that Arrow casts it to, so it is all the same whether a column is
    read as large, as a dictionary or neither. For several columns it is the hash of their hashes, 16 bytes each. A row
    with a null in a column has no key.

    Raises `pyarrow.ArrowNotImplementedError` for a type that has no text: lists, structs, maps.
    """
    k0, k1 = np.frombuffer(secret, "<u8", count=2)
    hashed = [_hash_column(_bytes_of(column), k0, k1) for column in columns]
    if len(hashed) == 1:
        return hashed[0]
    present = np.logical_and.reduce([hashes.present for hashes in hashed])
    halves = np.stack([half for hashes in hashed for half in hashes[:2]], axis=1).astype("<u8", copy=False)
    size_bytes = 8 * halves.shape[1]
    starts = np.arange(0, size_bytes * len(present) + 1, size_bytes)
    return _hash(halves.reshape(-1).view(np.uint8), starts, present, k0, k1)


def without_assigned(hashes: KeyHashes, key_columns: Sequence[str], rows: pa.RecordBatch) -> KeyHashes:
    """The same, but rows whose id Waybill assigned itself have no key: they had none that a sender could repeat.

    Only where the key is the column `message_id` alone. An assigned id is `<topic>/<partition>@<offset>` of the row
    itself: a message that brings the like from another place keeps it as a key. `rows` has these four columns.
    """
    if list(key_columns) != ["message_id"]:
        return hashes
    present = hashes.present.copy()
    ids, topics = _bytes_of(rows.column("message_id")), _bytes_of(rows.column("topic"))
    partitions, offsets = rows.column("partition").to_numpy(), rows.column("offset").to_numpy()
    clear_assigned(ids.data, ids.starts, topics.data, topics.starts, partitions, offsets, present)
    return hashes._replace(present=present)


def _hash_column(column: BinaryColumn, k0: Any, k1: Any) -> KeyHashes:
    present = ~column.nulls if len(column.nulls) else np.ones(len(column.starts) - 1, np.bool_)
    return _hash(column.data, column.starts, present, k0, k1)


def _hash(data: Array, starts: Array, present: Array, k0: Any, k1: Any) -> KeyHashes:
    hi, lo = np.zeros(len(present), np.uint64), np.zeros(len(present), np.uint64)
    siphash128(data, starts, k0, k1, present, hi, lo)
    return KeyHashes(hi, lo, present)


def _bytes_of(column: pa.Array) -> BinaryColumn:
    """What is hashed of a column."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.type not in _AS_IT_IS:
        column = column.cast(pa.binary() if pa.types.is_fixed_size_binary(column.type) else pa.string())
    return BinaryColumn.of(column)


_AS_IT_IS = frozenset({pa.string(), pa.large_string(), pa.binary(), pa.large_binary()})
