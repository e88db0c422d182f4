"""The lag of a Kinesis stream, and how long Kinesis keeps what is not archived: from the times of its slots."""

from __future__ import annotations

import pytest

from waybill.config.models import Config, Stream
from waybill.config.names import TopicPartition
from waybill.services.kafka.topic_configs import TopicRetention
from waybill.watch.incidents.finding import Verdict
from waybill.watch.promises.log_figures import Logs, archive_lag, retention_runway
from waybill.watch.promises.samples import OffsetSample, Samples

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
SLOTS = [TopicPartition("clicks", slot) for slot in range(2)]


def stream(**promises: str) -> Stream:
    document = {
        "version": 1,
        "storage": {"bucket": "bucket"},
        "streams": {
            "clicks": {
                "source": "kinesis",
                "topics": ["clicks"],
                "parser": {"name": "raw"},
                "table": "t.clicks",
                "promises": promises,
            }
        },
    }
    return Config.model_validate(document).stream("clicks")


def logs(*ages_ms: int) -> Logs:
    """Return two slots, archived up to so many milliseconds ago, of a stream that keeps records for a day."""
    return Logs(
        {("clicks", tp): OffsetSample(0, 10, 10) for tp in SLOTS},
        {},
        {},
        retention={"clicks": TopicRetention(DAY_MS, None)},
        archived_to_ms={("clicks", tp): NOW_MS - age for tp, age in zip(SLOTS, ages_ms, strict=True)},
    )


@pytest.mark.parametrize(
    ("ages_ms", "lag_seconds", "verdict"),
    [((0, 5_000), 5.0, Verdict.KEPT), ((900_000, 901_000), 901.0, Verdict.BROKEN), ((-2_000, -1), 0.0, Verdict.KEPT)],
)
def test_lag_is_the_age_of_the_slot_that_is_archived_least_far(
    ages_ms: tuple[int, int], lag_seconds: float, verdict: Verdict
) -> None:
    found = archive_lag("clicks", stream(archive_lag="15m"), logs(*ages_ms), Samples(), NOW_MS)
    assert (found.value, found.verdict) == (lag_seconds, verdict)


def test_runway_is_what_is_left_of_the_retention_of_a_slot_that_is_late() -> None:
    promises = stream(archive_lag="15m", retention_runway="6h")
    found = retention_runway("clicks", promises, logs(0, DAY_MS - 3_600_000), Samples(), NOW_MS)
    assert (found.value, found.verdict) == (3_600.0, Verdict.BROKEN)
    assert "clicks/1" in found.detail


def test_a_stream_that_is_archived_in_time_has_no_end_of_its_runway() -> None:
    found = retention_runway("clicks", stream(archive_lag="15m"), logs(0, 60_000), Samples(), NOW_MS)
    assert (found.value, found.verdict) == (None, Verdict.KEPT)
