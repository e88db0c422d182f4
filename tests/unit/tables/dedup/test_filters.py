"""Filters of the key index, compared with the answers of their library."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyfusefilter._xorfilter import ffi, lib

from waybill.tables.dedup.index import filters
from waybill.tables.dedup.index.filters import build, probe

_EDGE = [0, 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]


def _random(count: int, seed: int = 0) -> np.ndarray:
    return np.unique(np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64))


def _library_answers(content: bytes, keys: np.ndarray) -> list[bool]:
    """Return the library's own answers from the same bytes."""
    fuse = ffi.new("binary_fuse16_t *")
    assert lib.binary_fuse16_deserialize(fuse, ffi.from_buffer(content))
    try:
        return [bool(lib.binary_fuse16_contain(int(key), fuse)) for key in keys]
    finally:
        lib.binary_fuse16_free(fuse)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 1_000, 100_000])
def test_probe_answers_as_the_library_does_and_finds_every_key(count: int) -> None:
    keys = _random(count)
    content = build(keys)
    others = np.concatenate([_random(5_000, seed=1), np.array(_EDGE, np.uint64)])
    assert probe(content, keys).all()
    assert probe(content, others).tolist() == _library_answers(content, others)


@given(st.sets(st.integers(0, 2**64 - 1), max_size=60), st.lists(st.integers(0, 2**64 - 1), max_size=20))
def test_probe_answers_as_the_library_does_for_any_keys(keys: set[int], others: list[int]) -> None:
    content = build(np.array(sorted(keys), np.uint64))
    asked = np.array([*keys, *others, *_EDGE], np.uint64)
    answers = probe(content, asked)
    assert answers[: len(keys)].all()
    assert answers.tolist() == _library_answers(content, asked)


@pytest.mark.parametrize(
    "keys", [np.arange(70_000), np.arange(70_000) << 40, 2**63 + np.arange(70_000, dtype=np.uint64)]
)
def test_false_positive_rate_is_the_same_for_unevenly_distributed_keys(keys: np.ndarray) -> None:
    keys = keys.astype(np.uint64)
    content = build(keys)
    assert probe(content, keys).all()
    assert probe(content, _random(200_000)).sum() < 30  # 3 are to be expected


def test_filter_takes_less_than_2_4_bytes_per_key() -> None:
    assert len(build(_random(200_000))) < 2.4 * 200_000


def test_probe_of_no_keys_is_empty() -> None:
    assert probe(build(_random(10)), np.array([], np.uint64)).tolist() == []


def test_probe_accepts_a_view_into_a_larger_buffer() -> None:
    keys = _random(100)
    assert probe(memoryview(b"before" + build(keys))[6:], keys).all()


@pytest.mark.parametrize("keys", [[1, 1], [2, 1]])
def test_build_refuses_keys_that_are_not_strictly_ascending(keys: list[int]) -> None:
    with pytest.raises(ValueError, match="strictly ascending"):
        build(np.array(keys, np.uint64))


def test_probe_refuses_bytes_that_are_not_a_filter() -> None:
    content = build(_random(1_000))
    for damaged in (b"", content[:20], content[:-1], content + b"\0", content[:12] + b"\x03" + content[13:]):
        with pytest.raises(ValueError, match="filter"):
            probe(damaged, _random(5))


def test_damaged_header_never_makes_probe_read_out_of_bounds() -> None:
    content, asked = build(_random(50)), _random(1_000)
    rng = np.random.default_rng(7)
    for _ in range(300):
        damaged = bytearray(content)
        damaged[rng.integers(0, 28)] ^= 1 << int(rng.integers(0, 8))
        try:
            assert len(probe(bytes(damaged), asked)) == len(asked)
        except ValueError:
            continue


def test_probe_is_compiled_once_for_writable_and_read_only_arrays() -> None:
    keys = _random(10)
    frozen = keys.copy()
    frozen.flags.writeable = False
    content = build(frozen)
    assert probe(content, keys).all()
    assert probe(bytearray(content), frozen).all()
    assert len(filters._probe.signatures) == 1
