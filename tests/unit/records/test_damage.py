"""Damaged input: an error that names object and byte, or the messages that were there. Never a crash or a hang."""

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
from log_messages import logs, records_in

from waybill.errors import CorruptBatch
from waybill.records import frames
from waybill.records.decode import decode
from waybill.records.encode import Record

UNCOVERED = (*range(8), *range(12, 16))
"""Bytes of a batch that its CRC does not cover and that are no length: base offset and leader epoch."""


@given(log=logs(max_batches=3), draw=st.data())
def test_any_flipped_bit_is_found_unless_no_checksum_covers_it(
    log: tuple[bytes, list[Record]], draw: st.DataObject
) -> None:
    data, messages = log
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


@given(log=logs(max_batches=3), draw=st.data())
def test_any_truncation_within_a_batch_is_found(log: tuple[bytes, list[Record]], draw: st.DataObject) -> None:
    data, messages = log
    cut = draw.draw(st.integers(0, len(data) - 1))
    starts = [frame.position for frame in frames(data, where=WHERE)]
    try:
        found = records_in(decode(data[:cut], where=WHERE))
    except CorruptBatch as error:
        assert error.position_bytes == max(position for position in starts if position <= cut)  # noqa: PT017
    else:
        # Cut between two batches: the bytes alone cannot tell, an object's range does.
        assert cut in starts
        assert found == messages[: len(found)]


@given(st.binary(max_size=200))
def test_any_bytes_are_no_batches(data: bytes) -> None:
    if data:
        with pytest.raises(CorruptBatch, match=WHERE):
            list(decode(data, where=WHERE))


def test_damaged_records_without_a_crc_check_give_errors_or_rows() -> None:
    outcomes = drill(seed=1, rounds=3000)
    assert outcomes["refused"] > 1000
    assert outcomes["decoded"] > 500  # bits inside keys and values


def test_compiled_loops_stay_within_their_arrays(request: pytest.FixtureRequest) -> None:
    """The same drill in a process where numba checks every index; an access out of bounds is an IndexError there."""
    folder = Path(__file__).parent
    # The cached code of a normal run is not checked. Kept between test runs: compiling takes some seconds.
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
