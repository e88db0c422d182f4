"""Compiled loops of dedup: SipHash of a column's values, ids that Waybill assigned, and duplicates among rows.

All parameters of type `Array` are numpy arrays; numba compiles each function when it is first called.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from waybill.records.batches._kernels import Array, Int, compiled

# Use only uint64 in arithmetic: the compiler converts an int64 and a uint64 to a float.
_3, _7, _8, _56 = (np.uint64(n) for n in (3, 7, 8, 56))
_R13, _R16, _R17, _R21, _R32, _R64 = (np.uint64(n) for n in (13, 16, 17, 21, 32, 64))
_EE, _DD = np.uint64(0xEE), np.uint64(0xDD)
_V0, _V1, _V2, _V3 = (
    np.uint64(n) for n in (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
)
U64: TypeAlias = Any
"""A uint64 to the compiler."""
_ZERO, _AT, _SLASH = (ord(c) for c in "0@/")


# --- hashes of keys ---


@compiled
def _rotated(x: U64, bits: U64) -> U64:
    return (x << bits) | (x >> (_R64 - bits))


@compiled
def _round(v0: U64, v1: U64, v2: U64, v3: U64) -> tuple[U64, U64, U64, U64]:
    v0 += v1
    v1 = _rotated(v1, _R13) ^ v0
    v0 = _rotated(v0, _R32)
    v2 += v3
    v3 = _rotated(v3, _R16) ^ v2
    v0 += v3
    v3 = _rotated(v3, _R21) ^ v0
    v2 += v1
    v1 = _rotated(v1, _R17) ^ v2
    v2 = _rotated(v2, _R32)
    return v0, v1, v2, v3


@compiled
def _word(data: Array, at: U64) -> U64:
    """Return eight bytes as a little-endian number; the compiler makes one load of it."""
    word = np.uint64(data[at])
    for i in range(1, 8):
        word |= np.uint64(data[at + np.uint64(i)]) << (np.uint64(i) << _3)
    return word


@compiled
def _siphash128(data: Array, at: U64, length: U64, k0: U64, k1: U64) -> tuple[U64, U64]:
    v0, v1, v2, v3 = _V0 ^ k0, _V1 ^ k1 ^ _EE, _V2 ^ k0, _V3 ^ k1
    end = at + (length & ~_7)
    while at < end:
        word = _word(data, at)
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
        at += _8
    word = length << _56
    for i in range(length & _7):
        word |= np.uint64(data[at + np.uint64(i)]) << (np.uint64(i) << _3)
    v3 ^= word
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= _EE
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= _DD
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return first, v0 ^ v1 ^ v2 ^ v3


@compiled
def siphash128(data: Array, starts: Array, k0: U64, k1: U64, present: Array, first: Array, second: Array) -> None:
    """Write the SipHash-2-4 with 128 bits of `data[starts[n]:starts[n + 1]]` for each n where `present[n]`.

    `k0`, `k1`: the sixteen bytes of the secret as two little-endian numbers. The hash is written to `first` and
    `second` in the same form. It equals the reference implementation (github.com/veorq/SipHash, siphash.c, outlen 16).
    """
    for n in range(len(present)):
        if present[n]:
            start = np.uint64(starts[n])
            first[n], second[n] = _siphash128(data, start, np.uint64(starts[n + 1]) - start, k0, k1)


# --- ids that Waybill assigned ---


@compiled
def clear_assigned(
    ids: Array, id_starts: Array, topics: Array, topic_starts: Array, partitions: Array, offsets: Array, present: Array
) -> None:
    """Set `present[n]` to false where id n is `<topic>/<partition>@<offset>` of row n.

    Reads each id from its end: nearly every other id differs in its last two bytes.
    """
    for n in range(len(present)):
        start = np.int64(id_starts[n])
        end = _before_number(ids, start, np.int64(id_starts[n + 1]), offsets[n])
        end = _before_character(ids, start, end, _AT)
        if end >= 0:
            end = _before_number(ids, start, end, np.int64(partitions[n]))
            end = _before_character(ids, start, end, _SLASH)
            topic_start, topic_end = np.int64(topic_starts[n]), np.int64(topic_starts[n + 1])
            if end >= 0 and _is_same(ids, start, end, topics, topic_start, topic_end):
                present[n] = False


@compiled
def _before_number(data: Array, start: Int, end: Int, number: Int) -> Int:
    """Return the position where the decimal `number` that ends at `end` begins; -1 if another text precedes `end`."""
    rest = number
    while True:
        end -= 1
        if end < start or rest < 0 or data[end] != _ZERO + rest % 10:
            return -1
        rest //= 10
        if rest == 0:
            return end


@compiled
def _before_character(data: Array, start: Int, end: Int, character: Int) -> Int:
    """Return the position before `end` if the character there is the given one; else -1."""
    return end - 1 if end > start and data[end - 1] == character else -1


@compiled
def _is_same(data: Array, start: Int, end: Int, other: Array, other_start: Int, other_end: Int) -> bool:
    """Return whether two pieces of text are equal."""
    if end - start != other_end - other_start:
        return False
    while start < end and data[start] == other[other_start]:
        start += 1
        other_start += 1
    return bool(start == end)


# --- duplicates ---


@compiled
def may_repeat(hashes: Array, slots: Array) -> Array:
    """Return for each hash whether another one falls into the same slot, bool.

    `slots`: uint8, zeros, their number a power of two. A hash that is alone in its slot occurs once. With four slots
    for each hash, one in five of distinct hashes shares a slot.
    """
    mask = np.uint64(len(slots) - 1)
    for h in hashes:
        slots[h & mask] = 2 if slots[h & mask] else 1
    shared = np.empty(len(hashes), np.bool_)
    for n in range(len(hashes)):
        shared[n] = slots[hashes[n] & mask] == 2
    return shared


@compiled
def number_keys(rows: Array, hi: Array, lo: Array) -> Array:
    """Return the number of each row's key, int32: keys are counted from 0 in the order of `rows`.

    `rows`: indices into `hi` and `lo`, sorted by these.
    """
    numbers = np.zeros(len(rows), np.int32)
    for n in range(1, len(rows)):
        a, b = rows[n - 1], rows[n]
        numbers[n] = numbers[n - 1] + (hi[a] != hi[b] or lo[a] != lo[b])
    return numbers


@compiled
def latest_arrivals(rows: Array, keys: Array, tp: Array, arrived_ms: Array) -> Array:
    """Return for each row the latest arrival up to it among the rows of its key and topic-partition.

    `rows`: sorted by key, topic-partition and offset.
    """
    latest = arrived_ms[rows]
    for n in range(1, len(rows)):
        if keys[n] == keys[n - 1] and tp[rows[n]] == tp[rows[n - 1]]:
            latest[n] = max(latest[n], latest[n - 1])
    return latest


@compiled
def latest_entries(rows: Array, keys: Array, entry_of: Array, arrived_ms: Array, tp: Array, offset: Array) -> Array:
    """Return for each key the index entry that arrived last; -1 without an entry.

    `entry_of`: for each candidate the index entry of its key, or -1. `arrived_ms`, `tp`, `offset`: of the entries. If
    two entries have the same arrival, the result is always the same one.
    """
    count = keys[len(keys) - 1] + 1 if len(keys) else 0
    found = np.full(count, np.int64(-1))
    for n in range(len(rows)):
        new, old = entry_of[rows[n]], found[keys[n]]
        if new < 0:
            continue
        if old < 0 or (arrived_ms[new], tp[new], offset[new]) > (arrived_ms[old], tp[old], offset[old]):
            found[keys[n]] = new
    return found


@compiled
def find_repeated(
    rows: Array, keys: Array, arrived_ms: Array, entries: Array, entry_ms: Array, window_ms: Int, horizon_ms: Int
) -> Array:
    """Return for each row which row it repeats: n >= 0 for `rows[n]`, -2 - e for index entry e, -1 if it is kept.

    `rows`: candidates, those of a key adjacent, in the order in which they are compared. `entries`: for each key its
    index entry, or -1. Only the last kept row is remembered: it arrived last, or it and the earlier kept rows arrived
    before the horizon.
    """
    repeated = np.full(len(rows), np.int64(-1))
    latest, latest_ms, has_latest = -1, 0, False
    for n in range(len(rows)):
        if n == 0 or keys[n] != keys[n - 1]:
            entry = entries[keys[n]] if len(entries) else -1
            has_latest = entry >= 0
            if has_latest:
                latest, latest_ms = -2 - entry, entry_ms[entry]
        at_ms = arrived_ms[rows[n]]
        if has_latest and latest_ms >= max(at_ms - window_ms, horizon_ms):
            repeated[n] = latest
        else:
            latest, latest_ms, has_latest = n, at_ms, True
    return repeated
