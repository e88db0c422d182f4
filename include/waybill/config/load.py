"""From a YAML file to a `Config`, or to an error that names file, line, key, value and what is allowed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from waybill.config.models import Config
from waybill.errors import ConfigError

__all__ = ["CONFIG_VARIABLE", "DEFAULT_PATH", "config_path", "load_config"]

CONFIG_VARIABLE = "WAYBILL_CONFIG"
DEFAULT_PATH = Path(__file__).parents[2] / "config" / "streams.yaml"

# libyaml parses ten times as fast as PyYAML, which counts: the DAG processor loads the config all day.
_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def config_path(environment: Mapping[str, str] | None = None) -> Path:
    """`WAYBILL_CONFIG` if it is set, else the project's `include/config/streams.yaml`."""
    environment = os.environ if environment is None else environment
    return Path(environment.get(CONFIG_VARIABLE) or DEFAULT_PATH)


def load_config(path: Path | None = None) -> Config:
    """Read and check the config at `path` (default: `config_path()`).

    Raises `ConfigError` with one line for each fault: file, line, key, value, what is allowed.
    """
    path = path or config_path()
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); name another file with {CONFIG_VARIABLE}"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text") from None
    document, lines = _parse(path, text)
    try:
        return Config.model_validate(document)
    except ValidationError as error:
        faults = [_describe(path, lines, fault) for fault in error.errors(include_url=False)]
        raise ConfigError("\n".join(dict.fromkeys(faults))) from None


_Path = tuple[str | int, ...]


def _parse(path: Path, text: str) -> tuple[Any, dict[_Path, int]]:
    """The document, and the line of every key in it."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            raise ConfigError(f"{path}: is empty")
        lines: dict[_Path, int] = {}
        _note_lines(path, node, (), lines)
        return loader.construct_document(node), lines
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{path}{line}: is not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is not YAML: {error}") from None
    finally:
        loader.dispose()


def _note_lines(path: Path, node: yaml.Node, at: _Path, lines: dict[_Path, int]) -> None:
    lines.setdefault(at, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _note_lines(path, item, (*at, index), lines)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.value in seen:  # PyYAML would silently keep the last one
                raise ConfigError(f"{path}, line {line}: key {key.value!r} is there twice")
            seen.add(key.value)
            lines[(*at, key.value)] = line
            _note_lines(path, value, (*at, key.value), lines)


def _describe(path: Path, lines: dict[_Path, int], fault: Any) -> str:
    # pydantic adds the names of a union's members and of validators to the location: keep what the file has.
    location: _Path = ()
    for part in fault["loc"]:
        if (*location, part) in lines:
            location = (*location, part)
    missing = fault["type"] == "missing"
    key = ".".join(str(part) for part in ((*location, fault["loc"][-1]) if missing else location)) or "the file"
    line = f", line {lines[location]}" if location in lines else ""
    message = str(fault["msg"]).removeprefix("Value error, ")
    if missing:
        return f"{path}{line}: {key}: is required and not there"
    if fault["type"] == "extra_forbidden":
        return f"{path}{line}: {key}: there is no such key; see docs/config-reference.md for those there are"
    if str(fault["type"]).startswith("byte_size"):
        message = "a size is a number and a unit: 64MiB, 1GB"
    value = repr(fault["input"])
    shown = value if len(value) <= 80 else value[:77] + "…"
    return f"{path}{line}: {key}: {message} (found: {shown})"
