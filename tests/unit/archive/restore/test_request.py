"""What a person asks to restore: options that cannot be used are refused, with what is allowed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from waybill.archive.restore import RestoreRequest
from waybill.base.errors import RestoreRefused
from waybill.config.names import TopicPartition


def parse(**options: Any) -> RestoreRequest:
    return RestoreRequest.parse("flights", "kafka_dr", **options)


def test_options_become_a_request() -> None:
    request = parse(offsets=["flights/0@100-199", "flights/1@7-"], to_topic="restored-{topic}")
    assert request.offsets == {TopicPartition("flights", 0): (100, 200), TopicPartition("flights", 1): (7, None)}
    assert request.target_of("flights") == "restored-flights"
    assert parse(until="2026-11-22T11:00:00+01:00").until == datetime(2026, 11, 22, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"offsets": ["flights/0@200-100"]}, "empty or reversed"),
        ({"offsets": ["flights"]}, "such as flights/0@100-199"),
        ({"topic_partitions": ["flights"]}, "is not of the form topic/partition"),
        ({"until": "yesterday"}, "is no time such as 2026-11-22T10:00:00Z"),
        ({"until": "2026-11-22T10:00:00"}, "has no time zone"),
        ({"offsets": ["flights/0@1-2"], "until": "2026-11-22T10:00:00Z"}, "not both"),
        ({"to_topic": "a/b"}, "is no name of a target topic"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(RestoreRefused, match=reason):
        parse(**options)
