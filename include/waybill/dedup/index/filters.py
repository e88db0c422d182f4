"""Filters of the key index: "surely not there" for all but one in 65,536 of the keys that a run does not hold.

A binary fuse filter with 16-bit fingerprints (Graf and Lemire, "Binary Fuse Filters: Fast and Smaller Than Xor
Filters", 2022), built by its authors' own library, FastFilter's pyfusefilter, in the form in which that library writes
it (`binary_fuse16_serialize` in xor_singleheader's binaryfusefilter.h), little-endian:

    u64 seed · u32 keys · u32 segment length · u32 segments · u32 length of all segments · u32 slots · u16 for each slot

The library answers for one key a call. What probes a batch here is its `binary_fuse16_contain` as a compiled loop over
these bytes.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

import numpy as np
from pyfusefilter._xorfilter import ffi, lib

from waybill.records._kernels import Array, Int, compiled

__all__ = ["BUILD_BYTES_PER_KEY", "MAX_KEYS", "build", "probe"]

MAX_KEYS = 1 << 30
"""The most keys of a filter: the library counts slots in 32 bits."""
BUILD_BYTES_PER_KEY = 32
"""What `build` takes beside the keys while it works: the library's tables, the filter and its serialised form."""

_HEADER = struct.Struct("<Q5I")
_ARITY = 3
_Filter: TypeAlias = "bytes | memoryview"


def build(keys: Array) -> bytes:
    """The serialised filter of `keys`: uint64, strictly ascending; there may be none. About 2.25 bytes a key.

    They need not be well mixed: the filter hashes them once more. Raises `ValueError` for
    keys that are not strictly ascending or too many, `MemoryError` when the library cannot make a filter of them.
    """
    keys = np.ascontiguousarray(keys, np.uint64)
    count = len(keys)
    if count > MAX_KEYS:
        raise ValueError(f"{count:,} keys for one filter: {MAX_KEYS:,} at most")
    if not bool(np.all(keys[1:] > keys[:-1])):
        raise ValueError("the keys of a filter must be strictly ascending: sort them, and take each once")
    held = ffi.new("binary_fuse16_t *")
    if not lib.binary_fuse16_allocate(count, held):
        raise MemoryError(f"no memory for a filter of {count:,} keys")
    try:
        if not lib.binary_fuse16_populate(ffi.cast("uint64_t *", ffi.from_buffer(keys)), count, held):
            raise MemoryError(f"the filter of {count:,} keys could not be built: too little memory")
        return _serialized(held)
    finally:
        lib.binary_fuse16_free(held)


def probe(filter: bytes | memoryview, keys: Array) -> Array:  # noqa: A002 - what it is
    """For each of `keys` (uint64[n]) whether the filter may hold it: bool[n]; False is certain.

    Raises `ValueError` when the bytes are no filter. Bytes that are one, but damaged, give wrong answers and nothing
    worse: check what was read against its checksum first.
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


def _serialized(held: ffi.CData) -> bytes:
    """What `binary_fuse16_serialize` writes, without the bytes that its `_serialization_bytes` counts beyond that."""
    buffer = ffi.new("char[]", lib.binary_fuse16_serialization_bytes(held))
    lib.binary_fuse16_serialize(held, buffer)
    return bytes(ffi.buffer(buffer, _HEADER.size + 2 * held.ArrayLength))


def _parsed(filter: bytes | memoryview) -> tuple[int, int, int, Array]:  # noqa: A002
    """Seed, segment length, all segments' length and the fingerprints.

    The lengths are checked against each other, so that no key leads `_probe` out of the fingerprints.
    """
    if len(filter) < _HEADER.size:
        raise ValueError(f"{len(filter)} bytes are no filter: its header alone has {_HEADER.size}")
    seed, _, length, count, total, slots = _HEADER.unpack_from(filter)
    sound = (
        length > 0
        and length & (length - 1) == 0
        and count > 0
        and total == count * length
        and slots == total + (_ARITY - 1) * length
        and len(filter) == _HEADER.size + 2 * slots
    )
    if not sound:
        raise ValueError(
            f"no filter: {count} segments of {length}, {total} together, with {slots} slots in {len(filter)} bytes"
        )
    return seed, length, total, np.frombuffer(filter, np.dtype("<u2"), slots, _HEADER.size)


def _read_only(values: Array) -> Array:
    """A view that is: to numba, arrays that may be written are of another type, and it would compile for each."""
    view = values.view()
    view.flags.writeable = False
    return view


@compiled
def _probe(keys: Array, seed: Int, length: Int, total: Int, fingerprints: Array, found: Array) -> None:
    """`binary_fuse16_contain` of each key. All uint64: numba makes a float of what is signed and unsigned."""
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
