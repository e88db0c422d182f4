"""The config of the watch while the file does not load."""

from __future__ import annotations

from pathlib import Path

import pytest

from waybill.base.errors import ConfigError
from waybill.config.models.last_valid import load_for_watch

STREAM = """\
  {name}:
    topics: [{name}]
    table: a.{name}
    parser: {{event_time: {{field: at}}}}
"""
HEAD = """\
version: 1
storage: {bucket: archive}
alerts: {channels: {team: {type: webhook, connection: hook}}}
streams:
"""
VALID = HEAD + STREAM.format(name="flights") + STREAM.format(name="fares")
TYPO = VALID.replace("topics: [flights]", "topcis: [flights]")
ALL_BROKEN = VALID.replace("topics:", "topcis:")
NO_YAML = VALID.replace("alerts: {", "alerts: {{")
WRONG_SECTION = VALID + "kafka: {connetion: x}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "streams.yaml"


def test_a_config_with_a_broken_stream_loads_without_it(file: Path, tmp_path: Path) -> None:
    file.write_text(TYPO)
    found = load_for_watch(file, tmp_path)
    assert (found.error, list(found.config.streams), list(found.config.broken)) == ("", ["fares"], ["flights"])


@pytest.mark.parametrize("text", [ALL_BROKEN, NO_YAML, WRONG_SECTION, "", "\x00", "- a list\n"])
def test_the_last_config_that_loaded_takes_the_place_of_one_that_does_not(
    file: Path, tmp_path: Path, text: str
) -> None:
    file.write_text(VALID)
    load_for_watch(file, tmp_path)
    file.write_text(text)
    found = load_for_watch(file, tmp_path)
    assert str(file) in found.error
    assert list(found.config.streams) == ["flights", "fares"]
    assert found.is_whole
    file.unlink()
    assert "cannot be read" in load_for_watch(file, tmp_path).error
    file.write_text(VALID)
    assert load_for_watch(file, tmp_path).error == ""


@pytest.mark.parametrize("text", [ALL_BROKEN, WRONG_SECTION])
def test_without_an_earlier_config_the_valid_sections_tell_where_alerts_go(
    file: Path, tmp_path: Path, text: str
) -> None:
    file.write_text(text)
    found = load_for_watch(file, tmp_path)
    assert found.error
    assert not found.is_whole
    assert (dict(found.config.streams), list(found.config.alerts.channels)) == ({}, ["team"])


@pytest.mark.parametrize("text", [NO_YAML, "", VALID.replace("bucket", "bukket"), "- a list\n"])
def test_without_bucket_or_channels_the_watch_fails(file: Path, tmp_path: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError):
        load_for_watch(file, tmp_path)


def test_the_copy_is_in_a_private_directory(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    file.write_text(VALID)
    load_for_watch(file)
    [directory] = tmp_path.glob("waybill-watch-*")
    assert directory.stat().st_mode & 0o777 == 0o700
    directory.chmod(0o755)
    with pytest.raises(ConfigError, match="not a private directory"):
        load_for_watch(file)
