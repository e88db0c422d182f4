"""Filters of the key index: they exclude all but one in 65,536 of the keys that a sorted run does not contain.

A filter is a binary fuse filter with 16-bit fingerprints (Graf and Lemire, "Binary Fuse Filters: Fast and Smaller Than
Xor Filters", 2022). The authors' own library, FastFilter's pyfusefilter, builds it. The stored bytes are those of the
library (`binary_fuse16_serialize` in xor_singleheader's binaryfusefilter.h), little-endian:

    u64 seed · u32 keys · u32 segment length · u32 segments · u32 length of all segments · u32 slots · u16 for each slot

The library tests one key per call. `probe` tests a batch: it is the library's `binary_fuse16_contain` as a compiled
loop over the stored bytes.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

import numpy as np
from pyfusefilter._xorfilter import ffi, lib

from waybill.records.batches._kernels import Array, Int, compiled

MAX_KEYS = 1 << 30
"""Limit of keys in one filter: the library counts slots in 32 bits."""
BUILD_BYTES_PER_KEY = 32
"""Memory that `build` needs besides the keys: the library's tables, the filter and its serialised form."""

_HEADER = struct.Struct("<Q5I")
_ARITY = 3
_Filter: TypeAlias = "bytes | memoryview"


def build(keys: Array) -> bytes:
    """Return the serialised filter of `keys`, about 2.25 bytes a key.

    `keys`: uint64, strictly ascending; may be empty. They need not be evenly distributed: the filter hashes them again.

    Raises `ValueError` for keys that are not strictly ascending or too many, `MemoryError` when the library cannot
    build the filter.
    """
    keys = np.ascontiguousarray(keys, np.uint64)
    count = len(keys)
    if count > MAX_KEYS:
        raise ValueError(f"{count:,} keys are too many for one filter: {MAX_KEYS:,} at most")
    if not bool(np.all(keys[1:] > keys[:-1])):
        raise ValueError("the keys of a filter must be strictly ascending: sort them and remove duplicates")
    fuse = ffi.new("binary_fuse16_t *")
    if not lib.binary_fuse16_allocate(count, fuse):
        raise MemoryError(f"not enough memory for a filter of {count:,} keys")
    try:
        if not lib.binary_fuse16_populate(ffi.cast("uint64_t *", ffi.from_buffer(keys)), count, fuse):
            raise MemoryError(f"the filter of {count:,} keys could not be built: not enough memory")
        return _serialized(fuse)
    finally:
        lib.binary_fuse16_free(fuse)


def probe(filter: bytes | memoryview, keys: Array) -> Array:  # noqa: A002 - the subject's own name
    """Return for each of `keys` (uint64[n]) whether the filter may contain it: bool[n]. False is certain.

    Raises `ValueError` when the bytes are not a filter. Damaged bytes with a valid header give wrong answers but no
    invalid memory access: compare the bytes with their checksum first.
    """
    seed, segment_length, segment_count_length, fingerprints = _parsed(filter)
    found = np.empty(len(keys), np.bool_)
    _probe(
        _read_only(np.ascontiguousarray(keys, np.uint64)),
        np.uint64(seed),
        np.uint64(segment_length),
        np.uint64(segment_count_length),
        _read_only(fingerprints),
        found,
    )
    return found


def _serialized(fuse: ffi.CData) -> bytes:
    """Return what `binary_fuse16_serialize` writes; `binary_fuse16_serialization_bytes` counts more bytes than that."""
    buffer = ffi.new("char[]", lib.binary_fuse16_serialization_bytes(fuse))
    lib.binary_fuse16_serialize(fuse, buffer)
    return bytes(ffi.buffer(buffer, _HEADER.size + 2 * fuse.ArrayLength))


def _parsed(filter: bytes | memoryview) -> tuple[int, int, int, Array]:  # noqa: A002
    """Return seed, segment length, length of all segments, and the fingerprints.

    The lengths are compared with each other, so that no key makes `_probe` read beyond the fingerprints.
    """
    if len(filter) < _HEADER.size:
        raise ValueError(f"{len(filter)} bytes are not a filter: its header alone has {_HEADER.size}")
    seed, _, length, count, total, slots = _HEADER.unpack_from(filter)
    is_consistent = (
        length > 0
        and length & (length - 1) == 0
        and count > 0
        and total == count * length
        and slots == total + (_ARITY - 1) * length
        and len(filter) == _HEADER.size + 2 * slots
    )
    if not is_consistent:
        raise ValueError(
            f"not a filter: its header has {count} segments of {length}, {total} in total, and {slots} slots; it has "
            f"{len(filter)} bytes"
        )
    return seed, length, total, np.frombuffer(filter, np.dtype("<u2"), slots, _HEADER.size)


def _read_only(values: Array) -> Array:
    """Return a read-only view. To numba, writable arrays are another type, for which it would compile again."""
    view = values.view()
    view.flags.writeable = False
    return view


@compiled
def _probe(keys: Array, seed: Int, length: Int, total: Int, fingerprints: Array, found: Array) -> None:
    """Run `binary_fuse16_contain` for each key. All numbers are uint64: numba makes a float of signed and unsigned."""
    low, mask = np.uint64(0xFFFFFFFF), length - np.uint64(1)
    for i in range(len(keys)):
        h = keys[i] + seed  # murmur64's finalizer
        h ^= h >> np.uint64(33)
        h *= np.uint64(0xFF51AFD7ED558CCD)
        h ^= h >> np.uint64(33)
        h *= np.uint64(0xC4CEB9FE1A85EC53)
        h ^= h >> np.uint64(33)
        # The upper half of the 128-bit product; `total` has 32 bits.
        first = ((h >> np.uint64(32)) * total + (((h & low) * total) >> np.uint64(32))) >> np.uint64(32)
        second = (first + length) ^ ((h >> np.uint64(18)) & mask)
        third = (first + length + length) ^ (h & mask)
        rest = fingerprints[first] ^ fingerprints[second] ^ fingerprints[third]
        found[i] = rest == np.uint16((h ^ (h >> np.uint64(32))) & np.uint64(0xFFFF))
