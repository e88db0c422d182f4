"""The section `dedup:` of a stream: its defaults, and the values that loading refuses."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from waybill.base.errors import ConfigError
from waybill.config.models import Config, Dedup, Keep, load_config
from waybill.config.models.reference import json_schema

COLUMNS = {
    "carrier": "string",
    "landed": "timestamp",
    "day": "date",
    "price": "decimal(9,2)",
    "cancelled": "boolean",
    "delay": "double",
    "crew": "list<string>",
    "payload": "binary",
}


def document(dedup: object, /, **stream: object) -> dict[str, Any]:
    parser = {"event_time": {"field": "t"}, "message_id": "id"}
    flights = {"topics": ["a"], "parser": parser, "table": "x.flights", "columns": COLUMNS, "dedup": dedup, **stream}
    return {"version": 1, "storage": {"bucket": "archive"}, "streams": {"flights": flights}}


def load(tmp_path: Path, dedup: object, /, **stream: object) -> Config:
    file = tmp_path / "streams.yaml"
    file.write_text(yaml.safe_dump(document(dedup, **stream)))
    return load_config(file)


def section(tmp_path: Path, dedup: object, /, **stream: object) -> Dedup:
    found = load(tmp_path, dedup, **stream).stream("flights").dedup
    assert found is not None
    return found


def refusal(tmp_path: Path, dedup: object, /, **stream: object) -> str:
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, dedup, **stream)
    return str(raised.value)


def test_dedup_is_off_by_default(tmp_path: Path) -> None:
    written = document({})
    del written["streams"]["flights"]["dedup"]
    config = Config.model_validate(written)
    assert config.stream("flights").dedup is None
    assert "dedup" not in config.model_dump(mode="json")["streams"]["flights"]
    assert Config.model_validate(config.model_dump(mode="json")) == config


def test_defaults(tmp_path: Path) -> None:
    dedup = section(tmp_path, {})
    assert (dedup.key, dedup.keep, dedup.source) == (("message_id",), Keep.FIRST, None)
    assert (dedup.window, dedup.floor) == (timedelta(days=28), timedelta(hours=24))
    assert (dedup.window_ms, dedup.floor_ms) == (28 * 86_400_000, 86_400_000)
    assert (dedup.index_budget_bytes, dedup.buckets, dedup.schedule) == (16 << 30, 16, "@hourly")
    assert (dedup.run_bytes, dedup.task_bytes, dedup.memory) == (64 << 30, 256 << 20, 256 << 20)


def test_all_keys_survive_a_dump_to_json(tmp_path: Path) -> None:
    written = {
        "group": "own",
        "pool": "slow",
        "key": ["topic", "carrier", "landed", "day", "price", "cancelled", "payload", "value"],
        "window": "7d",
        "floor": "12h",
        "index_budget_bytes": "2GiB",
        "keep": "first",
        "source": "carrier",
        "schedule": "5 * * * *",
        "timeout": "2h",
        "run_bytes": "1GiB",
        "task_bytes": "64MiB",
        "buckets": 256,
        "memory": "128MiB",
    }
    config = load(tmp_path, written)
    assert config.model_dump(mode="json")["streams"]["flights"]["dedup"] == written
    assert Config.model_validate(config.model_dump(mode="json")) == config


def test_one_key_column_can_be_written_without_a_list(tmp_path: Path) -> None:
    assert section(tmp_path, {"key": "carrier"}).key == section(tmp_path, {"key": ["carrier"]}).key == ("carrier",)
    dumped = load(tmp_path, {"key": ["carrier"]}).model_dump(mode="json")
    assert dumped["streams"]["flights"]["dedup"]["key"] == "carrier"


@pytest.mark.parametrize(
    ("dedup", "at", "why"),
    [
        ({"key": "carriers"}, "key", "carriers: unknown column; known columns: topic, partition, offset"),
        ({"key": "headers"}, "key", "headers: unknown column; known columns: topic"),
        ({"key": ["topic", "offset"]}, "key", "offset: a message that is sent again has a new offset"),
        ({"key": "crew"}, "key", "crew: a list cannot be part of a key"),
        ({"key": "delay"}, "key", "delay: a double cannot be part of a key: its values are not exact"),
        ({"key": ["carrier", "carrier"]}, "key", "column 'carrier' is listed twice"),
        ({"key": []}, "key", "must be a column of the table, or a list of up to 16, each once: [topic, message_id]"),
        ({"key": None}, "key", "must be a column of the table, or a list of up to 16, each once"),
        ({"key": [7]}, "key", "a column must be text: put it in quotes"),
        ({"key": ""}, "key", "a column must be text: put it in quotes"),
        ({"source": "tail"}, "source", "tail: unknown column; known columns: topic"),
        ({"source": "crew"}, "source", "crew: duplicates cannot be counted by a list<string>"),
        ({"source": "payload"}, "source", "payload: duplicates cannot be counted by a binary"),
        ({"source": "Carrier"}, "source", "must be the name of a column of the table"),
        (
            {"window": "12h"},
            "window",
            "is 12h, shorter than the floor of 1d: raise it, or set floor to at most 12h",
        ),
        ({"window": "0s", "floor": "1s"}, "window", "must be between 1s and 3650d"),
        ({"window": 28}, "window", "a duration is a whole number and a unit"),
        ({"floor": "0s"}, "floor", "must be between 1s and 3650d"),
        ({"buckets": 12}, "buckets", "must be a power of two from 1 to 4096: 1, 2, 4, 8, 16 …"),
        ({"buckets": 0}, "buckets", "must be a power of two from 1 to 4096"),
        ({"buckets": 8192}, "buckets", "must be a power of two from 1 to 4096"),
        ({"buckets": True}, "buckets", "must be a power of two from 1 to 4096"),
        ({"buckets": "16"}, "buckets", "must be a power of two from 1 to 4096"),
        ({"index_budget_bytes": "1KiB"}, "index_budget_bytes", "must be between 1MiB and 16TiB"),
        ({"run_bytes": "1KiB"}, "run_bytes", "must be between 1MiB and 16TiB"),
        ({"task_bytes": "1TiB"}, "task_bytes", "must be between 1MiB and 16GiB"),
        ({"memory": "1MiB"}, "memory", "must be between 16MiB and 64GiB"),
        ({"keep": "last"}, "keep", "must be 'first'"),
        ({"schedule": "hourly"}, "schedule", "must be a cron expression of five fields"),
        ({"windows": "1d"}, "windows", "unknown key; did you mean 'window'?"),
    ],
)
def test_an_invalid_value_is_refused(tmp_path: Path, dedup: dict[str, object], at: str, why: str) -> None:
    assert f"streams.flights.dedup.{at}: {why}" in refusal(tmp_path, dedup)


@pytest.mark.parametrize("parser", [{"name": "raw"}, {"event_time": {"field": "t"}}])
@pytest.mark.parametrize("dedup", [{}, {"key": ["topic", "message_id"]}])
def test_message_id_is_refused_as_key_if_the_parser_reads_no_ids(tmp_path: Path, parser: object, dedup: object) -> None:
    message = refusal(tmp_path, dedup, parser=parser, columns={})
    assert "streams.flights.dedup" in message
    assert (
        "message_id: the parser has no message_id, so each row gets an id of its own and no row is a duplicate"
        in message
    )


def test_other_columns_can_be_the_key_without_message_ids(tmp_path: Path) -> None:
    assert section(tmp_path, {"key": "value"}, parser={"name": "raw"}, columns={}).key == ("value",)


def test_message_id_is_accepted_as_key_with_a_python_parser(tmp_path: Path) -> None:
    parser = {"name": "python", "class": "waybill.parsers.examples:KeyTime"}
    assert section(tmp_path, {}, parser=parser, columns={}).key == ("message_id",)


def test_an_empty_section_is_refused(tmp_path: Path) -> None:
    found = refusal(tmp_path, None)
    assert "streams.flights.dedup: must be a section: write {} for the defaults, or remove the key for no" in found


@pytest.mark.parametrize("written", ["message_id", True, ["message_id"], 28])
def test_a_value_that_is_not_a_section_is_refused(tmp_path: Path, written: object) -> None:
    message = "streams.flights.dedup: must be a section with the keys group, pool, key, window, floor"
    assert message in refusal(tmp_path, written)


def test_dedup_is_refused_with_the_sink_files(tmp_path: Path) -> None:
    found = refusal(tmp_path, {}, sink="files")
    assert "streams.flights.dedup: needs the rows in a table, which the sink files does not write: remove it" in found


def test_a_column_named_arrived_at_is_refused(tmp_path: Path) -> None:
    columns = {**COLUMNS, "arrived_at": "timestamp"}
    assert "streams.flights.columns.arrived_at: is a column of the unique table: choose another name" in (
        refusal(tmp_path, {}, columns=columns)
    )


@pytest.mark.parametrize("table", ["x.flights_unique", "x.flights_duplicates"])
def test_a_stream_cannot_have_the_name_of_anothers_dedup_table(tmp_path: Path, table: str) -> None:
    written = document({})
    other = {**written["streams"]["flights"], "topics": ["b"], "table": table}
    del other["dedup"]
    written["streams"]["other"] = other
    file = tmp_path / "streams.yaml"
    file.write_text(yaml.safe_dump(written))
    with pytest.raises(ConfigError, match=rf"'flights' and 'other' would both write the table {table}"):
        load_config(file)
    del written["streams"]["flights"]["dedup"]
    file.write_text(yaml.safe_dump(written))
    assert load_config(file).stream("other").table == table


@pytest.mark.parametrize(
    ("dedup", "is_right"),
    [({}, True), ({"key": ["topic", "message_id"], "buckets": 64}, True), (None, False), ({"buckets": 12}, False)],
)
def test_json_schema_agrees_with_the_model(dedup: object, is_right: bool) -> None:
    validator = jsonschema.Draft202012Validator(json.loads(json_schema()))
    assert validator.is_valid(document(dedup)) is is_right
