"""Resolve the arguments of commands: services, streams, topic-partitions, and the person who decides.

Connections come from environment variables.
"""

from __future__ import annotations

import contextlib
import getpass
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Self, TypeVar

import typer

from waybill.base.decision import Decision
from waybill.base.errors import ConfigError, WaybillError, expected
from waybill.config import names
from waybill.config.models import Config, load_valid_streams
from waybill.config.models.quantities import parse_duration, parse_size
from waybill.config.names import TopicPartition
from waybill.services.coordination import Coordinator
from waybill.services.store import Store

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_LONGEST_TEXT = 4_000
"""The most characters of a reason. The latest 50 decisions about a stream share a node of ZooKeeper."""


def load_streams() -> Config:
    """Return the config without the streams that have errors, and print these errors to stderr."""
    config = load_valid_streams()
    for name, error in config.broken.items():
        typer.echo(f"stream {name} is left out, since its config has errors:\n{error}", err=True)
    return config


def open_store(config: Config, bucket: str | None = None) -> Store:
    """Return the archive's bucket, or another bucket of the same S3. A context manager."""
    return Store.of(config.storage, bucket=bucket)


@contextlib.contextmanager
def open_catalog(config: Config) -> Iterator[Catalog]:
    """Open the Iceberg catalog."""
    # PyIceberg takes a second to import, and most commands do not need it.
    from waybill.tables.iceberg import catalog_of

    with catalog_of(config) as catalog:
        yield catalog


def open_coordinator(config: Config, stream: str) -> Coordinator:
    """Return the ZooKeeper nodes of a stream's generation. A context manager."""
    return Coordinator.of(config, stream)


def stream_names(config: Config, stream: str | None) -> list[str]:
    """Return the given stream, or all streams. Raises `ConfigError` if there is no such stream."""
    if stream is None:
        return list(config.streams)
    config.stream(stream)
    return [stream]


class StreamsAlone:
    """Reads streams one after the other. Errors of single streams are printed at the end of the command.

    A context manager: at its end it exits with 1 if a stream could not be read.
    """

    def __init__(self) -> None:
        self._failures: dict[str, WaybillError] = {}

    def read(self, streams: Sequence[str], read: Callable[[str], _T]) -> dict[str, _T]:
        """Return the results of `read` for all streams that can be read.

        Raises errors that concern all streams: the error of the only stream, or of a service that does not answer.
        """
        done = {}
        for name in streams:
            try:
                done[name] = read(name)
            except Exception as error:
                failure = expected(f"stream {name}", error)
                if failure.retriable or len(streams) == 1:
                    raise
                if failure is not error:
                    logger.exception("the stack trace of stream %s", name)
                self._failures[name] = failure
        return done

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        for name, failure in self._failures.items():
            typer.echo(f"stream {name} is left out: {type(failure).__name__}: {failure}", err=True)
        if self._failures and error is None:
            raise typer.Exit(1)


def stream_of_topic(config: Config, topic: str, stream: str | None) -> str:
    """Return the stream that archives a topic; `stream` is needed if several do.

    Raises `ConfigError` if no stream archives the topic, or several do and `stream` is None.
    """
    names.check_topic(topic)
    matching = [name for name in stream_names(config, stream) if config.stream(name).matches(topic)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise ConfigError(f"topic {topic!r} belongs to several streams ({', '.join(matching)}): choose with --stream")
    where = f"stream {stream!r}" if stream else "any stream"
    raise ConfigError(f"topic {topic!r} does not belong to {where}")


def archived_topic_partitions(
    config: Config, name: str, store: Store, generation: int | None = None
) -> list[TopicPartition]:
    """Return the topic-partitions that have a chain in a generation (None: the stream's), sorted."""
    stream = config.stream(name)
    wanted = stream.generation if generation is None else generation
    matching = (topic for topic in store.topics() if names.is_topic(topic) and stream.matches(topic))
    chains = (chain for topic in matching for chain in store.chains(topic))
    return sorted(chain.tp for chain in chains if chain.generation == wanted)


def parse_duration_option(option: str, text: str) -> timedelta:
    """Return the duration that was given for an option, such as `36h`. Raises `typer.BadParameter` (exit code 2)."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: {error}", param_hint=option) from None


def parse_size_option(option: str, text: str, *, also: str = "") -> int:
    """Return the bytes, at least 1, that were given for an option, such as `64MiB`.

    `also`: other values that the option allows, for the message. Raises `typer.BadParameter` (exit code 2).
    """
    try:
        size = parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: {error}{also}", param_hint=option) from None
    if size < 1:
        raise typer.BadParameter(f"{text!r}: it must be at least 1 byte{also}", param_hint=option)
    return size


def make_decision(reason: str, by: str | None) -> Decision:
    """Return the decision of `--reason` and `--by`; `by` defaults to `current_user`.

    Raises `ConfigError` if the reason is empty, or cannot be stored with the decision.
    """
    if not reason.strip():
        raise ConfigError("--reason is empty: give the reason of the decision; it is stored with the decision")
    for option, text in (("--reason", reason), ("--by", by or "")):
        if len(text) > _LONGEST_TEXT:
            raise ConfigError(f"{option} has {len(text):,} characters: give at most {_LONGEST_TEXT:,}, and a link")
        if "\0" in text or text.encode("utf-8", "replace") != text.encode("utf-8", "surrogatepass"):
            raise ConfigError(f"{option} is not UTF-8 text: it is stored with the decision, and cannot be")
    return Decision(reason.strip(), by or current_user())


def current_user() -> str:
    """Return `user@host` of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a user id that has no name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
