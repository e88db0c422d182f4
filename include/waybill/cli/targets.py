"""What a command line means: the stream behind a topic, and who decided what is recorded."""

from __future__ import annotations

import getpass
import socket

from waybill.config import Config
from waybill.errors import ConfigError
from waybill.gaps import Decision
from waybill.names import check_topic

__all__ = ["decision", "stream_names", "stream_of_topic", "whoever_is_typing"]


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
