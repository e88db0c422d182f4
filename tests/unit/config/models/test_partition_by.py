"""The key `partition_by:` of a stream: Spark's notation, and the partitionings that loading refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from waybill.base.errors import ConfigError
from waybill.config.models import ColumnTransform, Config, PartitionBy, TimeUnit, TransformKind, load_config

STREAM = """\
version: 1
storage: {bucket: archive}
streams:
  flights:
    topics: [flights]
    parser: {event_time: {field: time}}
    table: analytics.flights
    columns:
      carrier: string
      seats: int
      price: decimal(9,2)
      cents: decimal(2,0)
      delay: double
      cancelled: boolean
      day: date
      landed: timestamp
      crew: list<string>
      event_time_day: string
      seats_bucket: int
"""


def load(tmp_path: Path, partition_by: str) -> Config:
    file = tmp_path / "streams.yaml"
    file.write_text(f"{STREAM}    partition_by: {partition_by}\n")
    return load_config(file)


IDENTITY, BUCKET, TRUNCATE = TransformKind.IDENTITY, TransformKind.BUCKET, TransformKind.TRUNCATE


@pytest.mark.parametrize(
    ("written", "expected", "serialised"),
    [
        ("hour", PartitionBy(), "hour"),
        ("[hour]", PartitionBy(), "hour"),
        ("[hour, day]", PartitionBy(TimeUnit.HOUR, (ColumnTransform("day"),)), ["hour", "day"]),
        (
            "[hour, carrier, bucket(16, message_id), truncate(3, carrier)]",
            PartitionBy(
                TimeUnit.HOUR,
                (
                    ColumnTransform("carrier"),
                    ColumnTransform("message_id", BUCKET, 16),
                    ColumnTransform("carrier", TRUNCATE, 3),
                ),
            ),
            ["hour", "carrier", "bucket(16, message_id)", "truncate(3, carrier)"],
        ),
        (
            '[hour, "bucket( 4 ,topic )", topic, truncate(1000000, offset), price, bucket(2, landed)]',
            PartitionBy(
                TimeUnit.HOUR,
                (
                    ColumnTransform("topic", BUCKET, 4),
                    ColumnTransform("topic"),
                    ColumnTransform("offset", TRUNCATE, 1_000_000),
                    ColumnTransform("price"),
                    ColumnTransform("landed", BUCKET, 2),
                ),
            ),
            [
                "hour",
                "bucket(4, topic)",
                "topic",
                "truncate(1000000, offset)",
                "price",
                "bucket(2, landed)",
            ],
        ),
    ],
)
def test_sparks_notation_is_read_and_written_back(
    tmp_path: Path, written: str, expected: PartitionBy, serialised: Any
) -> None:
    config = load(tmp_path, written)
    assert config.stream("flights").partition_by == expected
    document = config.model_dump(mode="json")
    assert document["streams"]["flights"]["partition_by"] == serialised
    assert Config.model_validate(yaml.safe_load(yaml.safe_dump(document))) == config


def test_partition_fields_have_sparks_names() -> None:
    by = [ColumnTransform("a"), ColumnTransform("a", BUCKET, 16), ColumnTransform("a", TRUNCATE, 3)]
    assert [c.field_name for c in by] == ["a", "a_bucket", "a_trunc"]
    assert PartitionBy(TimeUnit.DAY).time_field_name == "event_time_day"


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("carrier", "must be 'hour' or 'day', of the event time, or a list that begins with one of them"),
        ("[carrier, hour]", "must be 'hour' or 'day', of the event time, or a list that begins with one of them"),
        ("[]", "must be hour or day, or a list that begins with it"),
        ("[hour, 3]", "must be hour or day, or a list that begins with it"),
        ("{hour: 1}", "must be hour or day, or a list that begins with it"),
        ("[hour, hours(landed)]", "'hours(landed)' is not a column, bucket(<buckets>, <column>) or truncate("),
        ("[hour, bucket(carrier, 16)]", "'bucket(carrier,16)' is not a column, bucket("),
        ("[hour, month(2, landed)]", "'month(2,landed)' is not a column, bucket("),
        ("[hour, Carrier]", "'Carrier' is not a column, bucket("),
        ("[hour, '']", "'' is not a column, bucket("),
        ("[hour, bucket(0, carrier)]", "'bucket(0,carrier)': the number of buckets must be between 1 and 100,000"),
        (
            "[hour, bucket(100001, carrier)]",
            "'bucket(100001,carrier)': the number of buckets must be between 1 and 100,000",
        ),
        ("[hour, truncate(0, carrier)]", "'truncate(0,carrier)': the width must be between 1 and 2,147,483,647"),
        ("[hour, carriers]", "carriers: unknown column; known columns: topic, partition, offset"),
        ("[hour, headers]", "headers: unknown column; known columns: "),
        ("[hour, carrier, carrier]", "carrier: repeats carrier; remove one of the two"),
        ("[hour, bucket(2, carrier), bucket(4, carrier)]", "bucket(4, carrier): repeats bucket(2, carrier)"),
        ("[hour, offset]", "offset: would make a partition for each message: use bucket or truncate"),
        ("[hour, message_id]", "message_id: would make a partition for each message: use bucket or truncate"),
        ("[hour, landed]", "landed: would make a partition for each microsecond"),
        ("[hour, event_time]", "event_time: would make a partition for each microsecond"),
        ("[hour, delay]", "delay: a table cannot be partitioned by a double: its values are not exact"),
        ("[hour, crew]", "crew: a table cannot be partitioned by a list"),
        ("[hour, bucket(4, crew)]", "bucket(4, crew): a table cannot be partitioned by a list"),
        ("[hour, bucket(4, delay)]", "bucket(4, delay): Iceberg cannot bucket a double"),
        ("[hour, bucket(4, cancelled)]", "bucket(4, cancelled): Iceberg cannot bucket a boolean"),
        ("[hour, truncate(4, cancelled)]", "truncate(4, cancelled): Iceberg cannot truncate a boolean"),
        ("[hour, truncate(4, landed)]", "truncate(4, landed): Iceberg cannot truncate a timestamp"),
        ("[hour, truncate(4, day)]", "truncate(4, day): Iceberg cannot truncate a date"),
        (
            "[hour, truncate(10, cents)]",
            "truncate(10, cents): truncation rounds down, so the smallest decimal(2,0) gets more digits",
        ),
        ("[day]", "day: the partition field would have the name of the column 'event_time_day': rename the column"),
        (
            "[hour, bucket(4, seats)]",
            "bucket(4, seats): the partition field would have the name of the column 'seats_bucket'",
        ),
        (f"[hour, {', '.join(['carrier'] * 9)}]", "has 9 columns: at most 8, since each multiplies the files"),
    ],
)
def test_an_invalid_partitioning_is_refused(tmp_path: Path, written: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, written)
    assert f"streams.flights.partition_by: {why}" in str(refused.value)
