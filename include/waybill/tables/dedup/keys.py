"""The key of a row: its 128-bit hash, its range of the hash space, and its text.

The hash is SipHash-2-4 with a secret that producers do not know, so two keys with equal hashes cannot be crafted.
Importing this module imports numba and pyarrow.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from waybill.archive.formats.columns import BinaryColumn
from waybill.records.batches._kernels import Array
from waybill.tables.dedup._kernels import clear_assigned, siphash128

_HASHED_AS_STORED = frozenset({pa.string(), pa.large_string(), pa.binary(), pa.large_binary()})


# --- hash ---


class KeyHashes(NamedTuple):
    """The hashes of the rows' keys: numpy arrays of one length. Where `present` is false the row has no key."""

    hi: Array
    """The first eight bytes of the hash as a little-endian number, uint64."""
    lo: Array
    """The other eight bytes, uint64."""
    present: Array
    """bool"""


def hash_keys(columns: Sequence[pa.Array], secret: bytes) -> KeyHashes:
    """Return the hashes of the rows' keys: SipHash-2-4 with 128 bits, with the 16 bytes of `secret`.

    `columns`: the key columns in the order of the config, of one length. Text (UTF-8) and binary values are hashed as
    their bytes, other types as the text that Arrow casts them to. So the Arrow layout of a column (large, dictionary)
    makes no difference. The hash of several columns is that of their hashes, 16 bytes each. A row with a null in a
    column has no key.

    Raises `pyarrow.ArrowNotImplementedError` for types that cannot be cast to text: lists, structs, maps.
    """
    k0, k1 = np.frombuffer(secret, "<u8", count=2)
    hashed = [_hash_column(_hashed_bytes(column), k0, k1) for column in columns]
    if len(hashed) == 1:
        return hashed[0]
    present = np.logical_and.reduce([hashes.present for hashes in hashed])
    halves = np.stack([half for hashes in hashed for half in hashes[:2]], axis=1).astype("<u8", copy=False)
    size_bytes = 8 * halves.shape[1]
    starts = np.arange(0, size_bytes * len(present) + 1, size_bytes)
    return _hash(halves.reshape(-1).view(np.uint8), starts, present, k0, k1)


def exclude_assigned_ids(hashes: KeyHashes, key_columns: Sequence[str], rows: pa.RecordBatch) -> KeyHashes:
    """Return the hashes with `present` false for rows whose id Waybill assigned: the message had no id to repeat.

    Applies only where the key is the column `message_id` alone. An assigned id is `<topic>/<partition>@<offset>` of the
    row itself. If a message holds such a text of another row as its id, the text stays its key. `rows` must have these
    four columns.
    """
    if list(key_columns) != ["message_id"]:
        return hashes
    present = hashes.present.copy()
    ids, topics = _hashed_bytes(rows.column("message_id")), _hashed_bytes(rows.column("topic"))
    partitions, offsets = rows.column("partition").to_numpy(), rows.column("offset").to_numpy()
    clear_assigned(ids.data, ids.starts, topics.data, topics.starts, partitions, offsets, present)
    return hashes._replace(present=present)


def hash_range_of(hi: Array, ranges: int) -> Array:
    """Return the range of each hash, uint16, if the hash space is cut into `ranges` equal ones, a power of two."""
    bits = ranges.bit_length() - 1
    if not bits:
        return np.zeros(len(hi), np.uint16)
    return (hi >> np.uint64(64 - bits)).astype(np.uint16)


def _hash_column(column: BinaryColumn, k0: Any, k1: Any) -> KeyHashes:
    present = ~column.nulls if len(column.nulls) else np.ones(len(column.starts) - 1, np.bool_)
    return _hash(column.data, column.starts, present, k0, k1)


def _hash(data: Array, starts: Array, present: Array, k0: Any, k1: Any) -> KeyHashes:
    hi, lo = np.zeros(len(present), np.uint64), np.zeros(len(present), np.uint64)
    siphash128(data, starts, k0, k1, present, hi, lo)
    return KeyHashes(hi, lo, present)


def _hashed_bytes(column: pa.Array) -> BinaryColumn:
    """Return the bytes of each value that are hashed."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.type not in _HASHED_AS_STORED:
        column = column.cast(pa.binary() if pa.types.is_fixed_size_binary(column.type) else pa.string())
    return BinaryColumn.from_array(column)


# --- text ---


def key_text(batch: pa.RecordBatch, names: Sequence[str]) -> pa.Array:
    """Return the key of each row as a JSON list of texts, one for each of the columns `names`."""
    values = [values_as_text(batch.column(name)).to_pylist() for name in names]
    return pa.array([json.dumps(row, ensure_ascii=False) for row in zip(*values, strict=True)], pa.string())


def values_as_text(column: pa.Array) -> pa.Array:
    """Return a column as text; bytes that are not UTF-8 as hexadecimal digits after `0x`."""
    if not pa.types.is_binary(column.type):
        return column.cast(pa.string())
    return pa.array([None if value is None else _bytes_as_text(value) for value in column.to_pylist()], pa.string())


def _bytes_as_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"
