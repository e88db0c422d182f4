"""The services behind a config, opened by connections from the environment.

What a command line means: the stream behind a topic, and who decided what is recorded.
"""

from __future__ import annotations

import contextlib
import getpass
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

from waybill.archive.gaps import Decision
from waybill.config import Config
from waybill.coordination import Coordinator
from waybill.errors import ConfigError
from waybill.names import check_topic
from waybill.store import Store

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

__all__ = [
    "decision",
    "open_catalog",
    "open_coordinator",
    "open_store",
    "stream_names",
    "stream_of_topic",
    "whoever_is_typing",
]


def open_store(config: Config, bucket: str | None = None) -> Store:
    """The archive's bucket, or another one of the same S3."""
    return Store.of(config.storage, bucket=bucket)


@contextlib.contextmanager
def open_catalog(config: Config) -> Iterator[Catalog]:
    """The Iceberg catalog."""
    # Here, for the other commands' sake: PyIceberg takes a second to import.
    from waybill.tables import catalog_of

    with catalog_of(config) as catalog:
        yield catalog


def open_coordinator(config: Config, stream: str) -> Coordinator:
    """ZooKeeper, for the nodes of a stream's generation. To be entered."""
    return Coordinator.of(config, stream)


def stream_names(config: Config, stream: str | None) -> list[str]:
    """The one that was given, or all there are. Raises `ConfigError` if there is no such stream."""
    if stream is None:
        return list(config.streams)
    config.stream(stream)
    return [stream]


def stream_of_topic(config: Config, topic: str, stream: str | None) -> str:
    """The stream that archives a topic. Raises `ConfigError` if none does, or several and none was given."""
    check_topic(topic)
    matching = [name for name in stream_names(config, stream) if config.stream(name).matches(topic)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise ConfigError(f"topic {topic!r} belongs to several streams ({', '.join(matching)}): say which by --stream")
    where = f"stream {stream!r}" if stream else "any stream"
    raise ConfigError(f"topic {topic!r} does not belong to {where}")


def decision(reason: str, by: str | None) -> Decision:
    """What `--reason` and `--by` say; without `by` it is whoever is typing. Raises `ConfigError` without a reason."""
    if not reason.strip():
        raise ConfigError("--reason is empty: say why, for whoever looks at it later")
    return Decision(reason.strip(), by or whoever_is_typing())


def whoever_is_typing() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
