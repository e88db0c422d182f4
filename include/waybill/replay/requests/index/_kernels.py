"""The compiled loop of the replay index: Kafka's murmur2 of many keys."""

from __future__ import annotations

import numpy as np

from waybill.records.batches._kernels import Array, Int, allocation_free

# Kafka's `Utils.murmur2`, with 32-bit numbers in 64 bits: numba has no 32-bit multiplication.
_MASK = np.int64(0xFFFFFFFF)
_M = np.int64(0x5BD1E995)
_SEED = np.int64(0x9747B28C)


@allocation_free
def _multiplied(number: Int) -> Int:
    return (number * _M) & _MASK


@allocation_free
def hash_keys(data: Array, starts: Array, n: Int, hashes: Array) -> None:
    """Write the hash of the bytes from `starts[i]` to `starts[i + 1]` into `hashes[i]`, for each i below n."""
    for i in range(n):
        position, end = np.int64(starts[i]), np.int64(starts[i + 1])
        length = end - position
        h = (_SEED ^ length) & _MASK
        while end - position >= 4:
            k = (
                np.int64(data[position])
                | (np.int64(data[position + 1]) << 8)
                | (np.int64(data[position + 2]) << 16)
                | (np.int64(data[position + 3]) << 24)
            )
            k = _multiplied(k)
            k ^= k >> 24
            h = _multiplied(h) ^ _multiplied(k)
            position += 4
        rest = end - position
        if rest == 3:
            h ^= np.int64(data[position + 2]) << 16
        if rest >= 2:
            h ^= np.int64(data[position + 1]) << 8
        if rest >= 1:
            h = _multiplied(h ^ np.int64(data[position]))
        h ^= h >> 13
        h = _multiplied(h)
        hashes[i] = h ^ (h >> 15)
