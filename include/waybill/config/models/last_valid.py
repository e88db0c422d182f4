"""The config of the watch, which must be able to send an alert while the config does not load.

When the file does not load at all (no YAML, an error outside of the streams, or an error in every stream), the watch
works with the last config of this machine that loaded: Kafka, S3 and the alert channels are most likely the same, and
the promises are measured as before. Without such a copy it works with the sections of the file that can be read, and
without streams. The watch fails only if neither of these has a bucket and ZooKeeper: then the dead man's switch gets no
request, and sends an alert.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from waybill.base.errors import ConfigError
from waybill.config.models import document
from waybill.config.models.base import DIRECTORY
from waybill.config.models.load import config_path, load_valid_streams, read_config, valid_streams_of
from waybill.config.models.root import Config

logger = logging.getLogger(__name__)

_SECTIONS = ("version", "storage", "kafka", "zookeeper", "catalog", "alerts", "airflow")
_PLACEHOLDER = {
    "placeholder": {
        "topics": ["placeholder"],
        "table": "placeholder.placeholder",
        "parser": {"event_time": {"field": "at"}},
    }
}
"""A config has at least one stream. This one is removed again."""


@dataclass(frozen=True, slots=True)
class WatchConfig:
    """The config for a watch."""

    config: Config
    error: str = ""
    """Why the file does not load; '' if it does."""
    source: str = ""
    """The origin of `config` in that case, for people."""
    is_whole: bool = True
    """False: the streams are unknown, since only other sections could be read."""


def load_for_watch(path: Path | None = None, directory: Path | None = None) -> WatchConfig:
    """Return the config of the file; while the file does not load, return its replacement.

    `directory`: the directory of the copy on this machine; by default, a private one in the system's temporary
    directory. Raises `ConfigError` if there is no replacement.
    """
    path = path or config_path()
    copy = (
        directory or _private_directory()
    ) / f"config-{hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:16]}"
    try:
        config = load_valid_streams(path)
    except ConfigError as error:
        logger.error("the config does not load:\n%s", error)
        return _of_copy(path, copy, str(error)) or _of_sections(path, error)
    _store_copy(path, copy)
    return WatchConfig(config)


def _of_copy(path: Path, copy: Path, error: str) -> WatchConfig | None:
    """Return the last config that loaded; None if this machine has none that loads with this version of Waybill."""
    try:
        config = valid_streams_of(path, copy.read_text(encoding="utf-8"))
    except (OSError, ValueError, ConfigError) as missing:
        logger.warning("there is no earlier config of this machine: %s", missing)
        return None
    return WatchConfig(config, error, "the last config that loaded")


def _of_sections(path: Path, error: ConfigError) -> WatchConfig:
    """Return a config of the sections that are valid, without streams.

    Raises `error` if these sections are not enough.
    """
    try:
        root = document.parse_document(read_config(path))
    except (document.DocumentError, ConfigError):
        raise error from None
    plain: Any = None if root is None else document.plain(root)
    if not isinstance(plain, dict):
        raise error
    known = {key: plain[key] for key in _SECTIONS if key in plain}
    while True:
        try:
            config = Config.model_validate({**known, "streams": _PLACEHOLDER}, context={DIRECTORY: path.parent})
        except ValidationError as invalid:
            found = {str(each["loc"][0]) for each in invalid.errors(include_url=False) if each["loc"]}
            # With a wrong bucket or ZooKeeper, the watch would read other incidents than the open ones.
            if not found or found & {"version", "storage", "zookeeper"} or not found & known.keys():
                raise error from None
            known = {key: value for key, value in known.items() if key not in found}
            continue
        left = config.model_copy(update={"streams": {}})
        return WatchConfig(left, str(error), "those sections that are valid, without streams", is_whole=False)


def _private_directory() -> Path:
    """Return a directory that only this user can read and write. Raises `ConfigError` if another user made it."""
    directory = Path(tempfile.gettempdir()) / f"waybill-watch-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(f"{directory} is not a private directory of this user: remove it")
    return directory


def _store_copy(path: Path, copy: Path) -> None:
    """Store the text of a config that loads. Without the copy, the watch still works."""
    try:
        text = read_config(path)
        if copy.exists() and copy.read_text(encoding="utf-8") == text:
            return
        new = copy.with_suffix(f".{os.getpid()}")
        new.write_text(text, encoding="utf-8")
        new.replace(copy)
    except (OSError, ValueError, ConfigError) as error:
        logger.warning("the config is not copied for the time when it does not load: %s", error)
