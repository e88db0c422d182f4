"""Where a replay request delivers its messages: a webhook, a Kafka topic, or objects in S3."""

from __future__ import annotations

import re
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar
from urllib.parse import urlsplit

from waybill.base.errors import ReplayRefused
from waybill.config import names
from waybill.config.connections.masking import masked_url
from waybill.config.models import Config
from waybill.config.models.replay import Replay

_MAX_URL_CHARACTERS = 2_000


class ObjectCompression(StrEnum):
    """The compression of delivered objects."""

    GZIP = "gzip"
    ZSTD = "zstd"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ReplayTarget:
    """What all targets have in common: their fields are those of their JSON, besides `type`."""

    type: ClassVar[str]

    def document(self) -> dict[str, str]:
        """Return the target as a request's JSON holds it."""
        return {"type": self.type, **{each.name: getattr(self, each.name) for each in fields(self)}}


@dataclass(frozen=True, slots=True)
class WebhookTarget(ReplayTarget):
    """JSON batches to a URL, at least once."""

    type: ClassVar[str] = "webhook"
    url: str

    def __str__(self) -> str:
        return masked_url(self.url)


@dataclass(frozen=True, slots=True)
class KafkaTarget(ReplayTarget):
    """Messages to a topic, exactly once."""

    type: ClassVar[str] = "kafka"
    connection: str
    topic: str

    def __str__(self) -> str:
        return f"{self.topic} at {self.connection}"


@dataclass(frozen=True, slots=True)
class S3Target(ReplayTarget):
    """JSON lines in objects of the archive's bucket, exactly once."""

    type: ClassVar[str] = "s3"
    compression: ObjectCompression = ObjectCompression.GZIP

    def __str__(self) -> str:
        return f"s3 ({self.compression})"


Target = WebhookTarget | KafkaTarget | S3Target
TARGETS: dict[str, type[ReplayTarget]] = {each.type: each for each in (WebhookTarget, KafkaTarget, S3Target)}
_TYPES = ", ".join(TARGETS)


def parse_target(value: Any, config: Config, replay: Replay, stream: str) -> Target:
    """Parse the target in the JSON of a request for `stream`.

    Raises `ReplayRefused` for a target that is malformed, or that the config does not allow.
    """
    if not isinstance(value, dict):
        raise ReplayRefused(
            f'must be a mapping with a type ({_TYPES}): {{"type": "webhook", "url": "https://…"}}', "target"
        )
    match value.get("type"):
        case WebhookTarget.type:
            _check_fields(value, WebhookTarget)
            return WebhookTarget(_url(value["url"], allow_http=replay.webhooks.allow_http))
        case KafkaTarget.type:
            _check_fields(value, KafkaTarget)
            return _kafka(value["connection"], value["topic"], config, replay, stream)
        case S3Target.type:
            _check_fields(value, S3Target)
            return S3Target(_compression(value.get("compression", ObjectCompression.GZIP)))
        case other:
            raise ReplayRefused(f"{shown(other)} is no type of a target; there are: {_TYPES}", "target.type")


def read_target(document: dict[str, Any]) -> Target:
    """Return the target of `document()`, without a check. Raises `KeyError` or `ValueError` for anything else."""
    match document["type"]:
        case WebhookTarget.type:
            return WebhookTarget(document["url"])
        case KafkaTarget.type:
            return KafkaTarget(document["connection"], document["topic"])
        case S3Target.type:
            return S3Target(ObjectCompression(document["compression"]))
        case other:
            raise ValueError(f"unknown target type {other!r}")


def _check_fields(value: dict[str, Any], kind: type[ReplayTarget]) -> None:
    for each in fields(kind):
        if each.default is MISSING and each.name not in value:
            raise ReplayRefused(f"a target of type {kind.type} needs it", f"target.{each.name}")
    known = ("type", *(each.name for each in fields(kind)))
    for field in value:
        if field not in known:
            raise ReplayRefused(
                f"a target of type {kind.type} has no field {shown(field)}, but: {', '.join(known)}", "target"
            )


def _url(value: Any, *, allow_http: bool) -> str:
    at = "target.url"
    if not isinstance(value, str) or not re.fullmatch(r"[!-~]+", value) or len(value) > _MAX_URL_CHARACTERS:
        raise ReplayRefused(
            f"must be a URL of up to {_MAX_URL_CHARACTERS:,} printable ASCII characters without spaces (percent-encode "
            f"others)",
            at,
        )
    try:
        parts = urlsplit(value)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ReplayRefused(f"is no URL: {error}", at) from None
    # Error messages do not repeat the URL: it may hold a secret, and messages are logged.
    if parts.username is not None or parts.password is not None:
        raise ReplayRefused("must not contain a user or a password: requests are shown to others", at)
    if parts.scheme == "http" and not allow_http:
        raise ReplayRefused(
            f"{masked_url(value)} is not encrypted: give an https:// URL; only the config "
            f"(replay.webhooks.allow_http) can allow http://",
            at,
        )
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise ReplayRefused(f"{masked_url(value)} must begin with https:// and name a host", at)
    if parts.fragment:
        raise ReplayRefused(f"{masked_url(value)} has a fragment (#…), which is never sent: remove it", at)
    return value


def _kafka(connection: Any, topic: Any, config: Config, replay: Replay, stream: str) -> KafkaTarget:
    allowed = replay.kafka.connections
    if connection not in allowed:
        listed = f"there are: {', '.join(allowed)}" if allowed else "the config allows none (replay.kafka.connections)"
        raise ReplayRefused(f"{shown(connection)} is no connection for replays; {listed}", "target.connection")
    if not isinstance(topic, str) or not names.is_topic(topic):
        raise ReplayRefused(
            f"{shown(topic)} is no topic: 1 to 249 characters of [a-zA-Z0-9._-], not '.' or '..'", "target.topic"
        )
    if connection == config.kafka.connection and config.stream(stream).matches(topic):
        raise ReplayRefused(
            f"{topic!r} is archived by the stream {stream}, which would archive the replayed messages again: give "
            f"another topic",
            "target.topic",
        )
    return KafkaTarget(connection, topic)


def _compression(value: Any) -> ObjectCompression:
    try:
        return ObjectCompression(value)
    except ValueError:
        listed = ", ".join(ObjectCompression)
        raise ReplayRefused(f"{shown(value)} is no compression; there are: {listed}", "target.compression") from None


def shown(value: Any) -> str:
    """Return a value of a request for an error message: its `repr`, limited in length."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
