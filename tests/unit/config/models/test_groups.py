"""Groups of streams: which DAG works on a stream, and a config in which some streams have errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from waybill.base.errors import ConfigError
from waybill.config.models import Config, load_config, load_valid_streams


def write(folder: Path, streams: dict[str, dict[str, Any]], **root: Any) -> Path:
    base = {"parser": {"event_time": {"field": "at"}}}
    config = {
        "version": 1,
        "storage": {"bucket": "abc"},
        **root,
        "streams": {name: {**base, "topics": [name], "table": f"x.{name}", **extra} for name, extra in streams.items()},
    }
    path = folder / "streams.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def load(folder: Path, streams: dict[str, dict[str, Any]], **root: Any) -> Config:
    return load_config(write(folder, streams, **root))


def test_streams_are_in_the_default_group(tmp_path: Path) -> None:
    config = load(tmp_path, {"a": {}, "b": {}})
    assert config.ingest_groups() == {"default": ["a", "b"]}
    assert config.group("default").ingest.schedule == "* * * * *"


@pytest.mark.parametrize("ingest", [{"group": "own"}, {"schedule": "*/5 * * * *"}, {"pool": "large"}])
def test_stream_leaves_its_group_by_name_or_with_a_schedule_or_pool_of_its_own(
    tmp_path: Path, ingest: dict[str, str]
) -> None:
    config = load(tmp_path, {"a": {"ingest": ingest}, "b": {"ingest": {"group": "small"}}})
    assert config.stream("a").ingest.has_own_dag
    assert config.ingest_groups() == {"small": ["b"]}


def test_schedule_beside_a_group_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"streams\.a\.ingest\.schedule: has no effect in the group 'small'"):
        load(tmp_path, {"a": {"ingest": {"group": "small", "schedule": "*/5 * * * *"}}})


def test_group_named_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'own' stands for a DAG of the stream's own"):
        load(tmp_path, {"a": {}}, groups={"own": {}})


def test_settings_of_a_group_are_read_by_its_name(tmp_path: Path) -> None:
    config = load(tmp_path, {"a": {}}, groups={"small": {"ingest": {"lanes": 9}, "dedup": {"parallel": 2}}})
    assert (config.group("small").ingest.lanes, config.group("other").ingest.lanes) == (9, 4)
    assert config.group("small").dedup.schedule == "@hourly"


def test_streams_with_errors_are_left_out_and_named(tmp_path: Path) -> None:
    path = write(tmp_path, {"a": {"table": "No"}, "b": {}, "c": {"partition_by": "century"}})
    config = load_valid_streams(path)
    assert list(config.streams) == ["b"]
    assert config.broken.keys() == {"a", "c"}
    assert "streams.a.table: " in config.broken["a"]
    assert "streams.c" not in config.broken["a"]
    with pytest.raises(ConfigError, match=r"streams\.c\.partition_by: "):
        config.stream("c")
    assert config.ingest_groups() == {"default": ["b", "a", "c"]}
    with pytest.raises(ConfigError, match=r"(?s)streams\.a\.table.*streams\.c\.partition_by"):
        load_config(path)


def test_of_two_streams_with_one_topic_the_second_is_left_out(tmp_path: Path) -> None:
    config = load_valid_streams(write(tmp_path, {"a": {}, "b": {"topics": ["a"]}, "c": {"table": "No"}}))
    assert list(config.streams) == ["a"]
    assert "both archive topic 'a'" in config.broken["b"]


def test_config_without_errors_is_the_same_either_way(tmp_path: Path) -> None:
    path = write(tmp_path, {"a": {}, "b": {"ingest": {"group": "small"}}})
    assert load_valid_streams(path) == load_config(path)
    assert load_valid_streams(path).broken == {}


@pytest.mark.parametrize("root", [{"storage": {}}, {"unknown": 1}])
def test_error_outside_the_streams_is_raised(tmp_path: Path, root: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        load_valid_streams(write(tmp_path, {"a": {}, "b": {"table": "No"}}, **root))


def test_config_without_a_valid_stream_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"streams\.a\.table"):
        load_valid_streams(write(tmp_path, {"a": {"table": "No"}}))
