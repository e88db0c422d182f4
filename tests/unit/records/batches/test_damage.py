"""Damaged input raises an error with object and byte, or yields sound messages. It never crashes or hangs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import damage_drill
import pytest
from damage_drill import WHERE, drill
from hypothesis import given
from hypothesis import strategies as st
from record_strategies import batch_sequences, records_in

from waybill.base.errors import CorruptBatch
from waybill.records.batches import frames
from waybill.records.batches.decode import decode
from waybill.records.batches.encode import Record

UNCOVERED = (*range(8), *range(12, 16))
"""The bytes of base offset and leader epoch: the CRC does not cover them, and they are no length."""


@given(sequence=batch_sequences(max_batches=3), draw=st.data())
def test_any_flipped_bit_raises_unless_the_crc_does_not_cover_it(
    sequence: tuple[bytes, list[Record]], draw: st.DataObject
) -> None:
    data, messages = sequence
    bit = draw.draw(st.integers(0, len(data) * 8 - 1))
    starts = [frame.position for frame in frames(data, where=WHERE)]
    start = max(position for position in starts if position <= bit // 8)
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    try:
        found = records_in(decode(damaged, where=WHERE))
    except CorruptBatch as error:
        assert error.where == WHERE  # noqa: PT017
        assert error.position_bytes in starts  # noqa: PT017
    else:
        assert bit // 8 - start in UNCOVERED
        assert [record[1:] for record in found] == [record[1:] for record in messages]


@given(sequence=batch_sequences(max_batches=3), draw=st.data())
def test_any_truncation_within_a_batch_raises(sequence: tuple[bytes, list[Record]], draw: st.DataObject) -> None:
    data, messages = sequence
    cut = draw.draw(st.integers(0, len(data) - 1))
    starts = [frame.position for frame in frames(data, where=WHERE)]
    try:
        found = records_in(decode(data[:cut], where=WHERE))
    except CorruptBatch as error:
        assert error.position_bytes == max(position for position in starts if position <= cut)  # noqa: PT017
    else:
        # The cut is between two batches. Only the range of the object shows that batches are missing.
        assert cut in starts
        assert found == messages[: len(found)]


@given(st.binary(max_size=200))
def test_random_bytes_raise(data: bytes) -> None:
    if data:
        with pytest.raises(CorruptBatch, match=WHERE):
            list(decode(data, where=WHERE))


def test_damaged_records_with_a_valid_crc_raise_or_yield_rows() -> None:
    outcomes = drill(seed=1, rounds=3000)
    assert outcomes["refused"] > 1000
    assert outcomes["decoded"] > 500  # bits inside keys and values


@pytest.mark.deep
def test_compiled_loops_stay_within_their_arrays(request: pytest.FixtureRequest) -> None:
    """Run the drill in a process where numba checks every index: an access out of bounds raises IndexError."""
    folder = Path(__file__).parent
    # A cache of its own, since cached code of normal processes lacks the checks. It is kept between test runs,
    # because compiling takes some seconds.
    cache = request.config.cache
    assert cache is not None
    environment = os.environ | {
        "NUMBA_BOUNDSCHECK": "1",
        "NUMBA_CACHE_DIR": str(cache.mkdir("numba-boundscheck")),
        "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, damage_drill.__file__], env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "refused" in done.stdout
