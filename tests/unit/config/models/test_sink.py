"""The section `sink:` of a stream: formats, keys without effect, and streams that would write one directory."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from waybill.base.errors import ConfigError
from waybill.config.models import Config, load_config
from waybill.config.models.enums import Compression, FileFormat, SequenceFileKey, SinkName
from waybill.config.names import FileExtension


def load(tmp_path: Path, sink: object, /, second: object = None, **stream: object) -> Config:
    first = {"topics": ["a"], "parser": {"event_time": {"field": "t"}}, "table": "x.first", "sink": sink, **stream}
    streams = {"first": first}
    if second is not None:
        streams["second"] = {**first, "topics": ["b"], "table": "x.second", "sink": second}
    file = tmp_path / "streams.yaml"
    document = {"version": 1, "storage": {"bucket": "archive", "prefix": "prod"}, "streams": streams}
    file.write_text(yaml.safe_dump(document))
    return load_config(file)


def test_the_default_sink_is_the_table(tmp_path: Path) -> None:
    sink = load(tmp_path, "iceberg").stream("first").sink
    assert (sink.name, sink.is_files) == (SinkName.ICEBERG, False)
    assert load(tmp_path, "iceberg").stream("first").parse_settings.files is None


def test_a_name_is_the_short_form_of_a_sink(tmp_path: Path) -> None:
    config = load(tmp_path, "files")
    sink = config.stream("first").sink
    assert (sink.is_files, sink.format.name, sink.format.codec) == (True, FileFormat.PARQUET, Compression.ZSTD)
    assert config.files_root("first") == "prod/tables/x.first_g1"
    assert config.stream("first").parse_settings.files == sink.format


@pytest.mark.parametrize(
    ("format_", "extension", "codec"),
    [
        ("parquet", FileExtension.PARQUET, Compression.ZSTD),
        ({"name": "parquet", "compression": "snappy"}, FileExtension.PARQUET, Compression.SNAPPY),
        ("sequencefile", FileExtension.SEQUENCEFILE, Compression.NONE),
        (
            {"name": "sequencefile", "key": "legacy", "compression": "gzip"},
            FileExtension.SEQUENCEFILE,
            Compression.GZIP,
        ),
        ("text", FileExtension.TEXT, Compression.NONE),
        ({"name": "text", "compression": "gzip", "delimiter": "\x1e"}, FileExtension.TEXT_GZIP, Compression.GZIP),
    ],
)
def test_formats_have_extension_and_codec(
    tmp_path: Path, format_: object, extension: FileExtension, codec: Compression
) -> None:
    config = load(tmp_path, {"name": "files", "format": format_})
    found = config.stream("first").sink.format
    assert (found.extension, found.codec) == (extension, codec)
    assert Config.model_validate(config.model_dump(mode="json")) == config
    if isinstance(format_, dict) and "key" in format_:
        assert found.key is SequenceFileKey.LEGACY


@pytest.mark.parametrize(
    ("sink", "stream", "message"),
    [
        (
            {"name": "iceberg", "lateness": "2h"},
            {},
            "has no effect with the sink iceberg: remove it, or set name: files",
        ),
        ({"name": "files", "prefix": "backup"}, {}, "'backup' is a prefix of Waybill's own objects"),
        ({"name": "files", "prefix": "plans/x"}, {}, "'plans' is a prefix of Waybill's own objects"),
        ({"name": "files", "prefix": ""}, {}, "must be up to 400 characters"),
        ({"name": "files", "prefix": "a/../b"}, {}, "must be up to 400 characters"),
        ({"name": "files", "prefix": "dt=1"}, {}, "must be up to 400 characters"),
        ({"name": "files", "prefix": "{topic}"}, {}, "must be up to 400 characters"),
        ({"name": "files", "lateness": "91d"}, {}, "must be between 0s and 90d"),
        (
            {"name": "files", "format": {"name": "parquet", "key": "legacy"}},
            {},
            "has no effect with the format parquet",
        ),
        (
            {"name": "files", "format": {"name": "text", "compression": "zstd"}},
            {},
            "must be none or gzip with the format text",
        ),
        (
            "files",
            {"partition_by": ["hour", "carrier"], "columns": {"carrier": "string"}},
            "must be hour or day with the sink files",
        ),
        ("files", {"columns": {"hr": "int"}}, "is the name of a directory level of the sink files"),
        ("file", {}, "must be 'iceberg' or 'files'"),
    ],
)
def test_an_invalid_sink_is_refused(tmp_path: Path, sink: object, stream: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, sink, **stream)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("first", "second", "overlap"),
    [
        ("tables/{table}", "tables/{table}", ""),
        ("out", "out", "prod/out/"),
        ("out", "out/deeper", "prod/out/"),
        ("out/deeper", "out", "prod/out/"),
        ("out/{table}", "out", "prod/out/"),
        ("out", "outer", ""),
    ],
)
def test_two_streams_cannot_write_files_below_one_directory(
    tmp_path: Path, first: str, second: str, overlap: str
) -> None:
    def both() -> Config:
        return load(tmp_path, {"name": "files", "prefix": first}, {"name": "files", "prefix": second})

    if not overlap:
        assert both().files_root("first") != both().files_root("second")
        return
    with pytest.raises(ConfigError, match=rf"would both write below {overlap}: give one of them another prefix"):
        both()
