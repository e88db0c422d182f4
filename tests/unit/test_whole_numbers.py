"""Numbers in texts from outside: of addresses, forms, headers and command lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.archive.ingest.gap_acceptance import SeenGap
from waybill.base.errors import GapRefused
from waybill.config.models.quantities import whole_number
from waybill.config.names import LAST_OFFSET, MAX_PARTITION, TopicPartition, parse_offsets


@given(st.integers(0, 10**30), st.integers(0, 10**20), st.integers(0, 5))
def test_a_number_is_read_up_to_its_limit_and_with_leading_zeros(number: int, most: int, zeros: int) -> None:
    assert whole_number("0" * zeros + str(number), most) == (number if number <= most else None)


@pytest.mark.parametrize("text", ["", "-1", "+1", " 1", "1 ", "1.0", "1e3", "²", "٣", "１", "9" * 5_000, "0x1"])
def test_what_is_no_number_is_none(text: str) -> None:
    assert whole_number(text, 10**30) is None


@pytest.mark.parametrize("number", [str(MAX_PARTITION + 1), "9" * 20, "9" * 5_000])
def test_a_partition_that_kafka_cannot_have_is_refused_by_its_name(number: str) -> None:
    with pytest.raises(ValueError, match=r"flights/9|2147483648"):
        TopicPartition.parse(f"flights/{number}")


@pytest.mark.parametrize("number", [str(LAST_OFFSET + 1), "9" * 20, "9" * 5_000])
def test_an_offset_that_kafka_cannot_have_is_refused(number: str) -> None:
    with pytest.raises(ValueError, match="too large"):
        parse_offsets(f"flights/0@0-{number}")
    with pytest.raises(GapRefused, match="no range of offsets"):
        SeenGap.parse(f"0-{number}")
    assert parse_offsets(f"flights/0@0-{LAST_OFFSET}")[1] == (0, LAST_OFFSET + 1)
