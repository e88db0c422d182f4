"""Load a YAML file as a `Config`, or raise an error that names file, line, key, value and the allowed values."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from waybill.base.errors import ConfigError
from waybill.config.models import document
from waybill.config.models.base import DIRECTORY
from waybill.config.models.error_lines import child, describe, describe_all
from waybill.config.models.root import Config

CONFIG_VARIABLE = "WAYBILL_CONFIG"
DEFAULT_PATH = Path(__file__).parents[3] / "config" / "streams.yaml"

MAX_FILE_BYTES = 16 << 20
"""A config of this size has about 30,000 streams. A larger file is not a config."""


def config_path(environment: Mapping[str, str] | None = None) -> Path:
    """Return the path in `WAYBILL_CONFIG` if it is set, else the project's `include/config/streams.yaml`."""
    environment = os.environ if environment is None else environment
    return Path(environment.get(CONFIG_VARIABLE) or DEFAULT_PATH)


def load_config(path: Path | None = None) -> Config:
    """Read and check the config at `path` (default: `config_path()`).

    Raise `ConfigError` with one line for each error: file, line, key, the allowed values, and the found value.
    """
    path = path or config_path()
    root = _parse(path, read_config(path))
    try:
        return _validate(path, root, ())
    except ValidationError as error:
        raise ConfigError("\n".join(describe_all(path, root, Config, error))) from None


def load_valid_streams(path: Path | None = None) -> Config:
    """Load the config like `load_config`, but leave out the streams that have errors; see `Config.broken`.

    So an error in one stream stops only that stream. Raise `ConfigError` if there is an error elsewhere, or in every
    stream.
    """
    path = path or config_path()
    return valid_streams_of(path, read_config(path))


def valid_streams_of(path: Path, text: str) -> Config:
    """Parse the text of a config like `load_valid_streams`. `path`: its origin, for errors and embedded files."""
    root = _parse(path, text)
    broken: dict[str, list[str]] = {}
    while True:
        try:
            config = _validate(path, root, broken)
        except ValidationError as error:
            lines = describe_all(path, root, Config, error)
            found = [_stream_of(each) for each in error.errors(include_url=False)]
            new = {name for name in found if name is not None}
            if None in found or not new - broken.keys() or len(broken.keys() | new) == _count_streams(root):
                raise ConfigError("\n".join([*(line for each in broken.values() for line in each), *lines])) from None
            for each in error.errors(include_url=False):
                broken.setdefault(str(_stream_of(each)), []).append(describe(path, root, Config, each))
            continue
        return config.without_streams({name: "\n".join(dict.fromkeys(lines)) for name, lines in broken.items()})


def _stream_of(error: Any) -> str | None:
    """Return the stream in which one of pydantic's errors is; None if it is elsewhere."""
    location = (*error["loc"], *error.get("ctx", {}).get("at", ()))
    return str(location[1]) if len(location) > 1 and location[0] == "streams" else None


def _count_streams(root: document.Node) -> int:
    streams = child(root, "streams")
    return len(streams.items) if isinstance(streams, document.Mapping) else 0


def _parse(path: Path, text: str) -> document.Node:
    try:
        root = document.parse_document(text)
    except document.DocumentError as error:
        line = f", line {error.line}" if error.line else ""
        raise ConfigError(f"{path}{line}: {error.reason}") from None
    if root is None:
        raise ConfigError(f"{path}: is empty; it needs at least: version, storage, streams")
    return root


def _validate(path: Path, root: document.Node, without: Collection[str]) -> Config:
    """Return the config without some of its streams. Raise pydantic's `ValidationError`."""
    plain = document.plain(root)
    if without:
        plain = {**plain, "streams": {name: value for name, value in plain["streams"].items() if name not in without}}
    return Config.model_validate(plain, context={DIRECTORY: path.parent})


def read_config(path: Path) -> str:
    """Return the text of a config. Raises `ConfigError` if it cannot be read, is too large, or is not UTF-8."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = f"{CONFIG_VARIABLE} names it" if os.environ.get(CONFIG_VARIABLE) == str(path) else ""
        remedy = hint or f"name another file with {CONFIG_VARIABLE}"
        raise ConfigError(f"{path}: the config cannot be read ({reason}); {remedy}") from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: is larger than {MAX_FILE_BYTES >> 20} MiB, too large for a config")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}, line {line}: is not UTF-8 text") from None
