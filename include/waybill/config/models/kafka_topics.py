"""Declared topics: `waybill kafka plan` compares Kafka with them, and `waybill kafka apply` changes Kafka."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import ByteSize, Field, model_validator

from waybill.config.models.base import Matching, Section, ValueType, section_error
from waybill.config.models.quantities import DurationBetween, SizeBetween, WholeNumberBetween, format_duration

FOREVER = "forever"
THROTTLED_REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
"""The configs of a topic that name the replicas under a replication throttle."""
_UNLIMITED = "-1"
_RETENTION = DurationBetween("1m", "36500d")
_CONFIG_NAME = Matching(r"[a-z][a-z.]{0,99}", "a config of a topic, such as max.message.bytes")


class CleanupPolicy(StrEnum):
    """What Kafka does with old messages."""

    DELETE = "delete"
    COMPACT = "compact"
    COMPACT_DELETE = "compact,delete"


class Retention(ValueType):
    """A duration, or `forever`."""

    type_name = "duration"
    allowed = f"{_RETENTION.allowed}; or {FOREVER}"

    def parse(self, value: Any) -> timedelta | str:
        return FOREVER if value == FOREVER else _RETENTION.parse(value)

    def format(self, value: Any) -> str:
        return FOREVER if value == FOREVER else format_duration(value)


class DeclaredTopic(Section):
    """A topic as it is to be. Defaults are for topics that are created: an existing one gets what is written here."""

    partitions: Annotated[int, WholeNumberBetween(1, 100_000)] = Field(
        description="How many topic-partitions. Kafka cannot remove any."
    )
    replication_factor: Annotated[int, WholeNumberBetween(1, 100)] = Field(
        3, description="How many brokers store each message. `waybill kafka apply` raises it, and never lowers it."
    )
    min_insync_replicas: Annotated[int, WholeNumberBetween(1, 100)] = Field(
        2, description="How many replicas must have a message before Kafka acknowledges it with `acks=all`."
    )
    retention: Annotated[timedelta | str, Retention()] | None = Field(
        None,
        description="How long Kafka keeps messages (`retention.ms`). A topic that is created without it has the "
        "brokers' default.",
    )
    retention_bytes: Annotated[ByteSize, SizeBetween("1MiB", "1024TiB")] | None = Field(
        None, description="How much Kafka keeps of each topic-partition (`retention.bytes`)."
    )
    cleanup_policy: CleanupPolicy = Field(
        CleanupPolicy.DELETE, description="`delete`, `compact`, or `compact,delete` (`cleanup.policy`)."
    )
    unclean_leader_election: bool = Field(
        False,
        description="Whether a replica that lacks messages may become leader (`unclean.leader.election.enable`). Then "
        "acknowledged messages can be lost. Existing topics, too, are set to `false` if this key is not written.",
    )
    configs: dict[Annotated[str, _CONFIG_NAME], str] = Field(
        {}, description="Other configs of the topic, by Kafka's names. Each value is text, in quotes."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min_insync_replicas > self.replication_factor:
            raise section_error(
                "min_insync_replicas",
                f"is more than replication_factor ({self.replication_factor}): every write with acks=all would be "
                f"refused. Lower it, or raise replication_factor",
            )
        for name, key in _KEYS.items():
            if name in self.configs:
                raise section_error(("configs", name), f"has a key of its own: write `{key}: …` instead")
        for name in THROTTLED_REPLICAS:
            if name in self.configs:
                raise section_error(
                    ("configs", name), "is set and removed by `waybill kafka apply` while it copies: remove this line"
                )
        return self

    def is_written(self, key: str) -> bool:
        """Return whether the config file has this key of the section: if not, its value is a default."""
        return key in self.model_fields_set

    def topic_configs(self) -> dict[str, str]:
        """Return the configs of a topic that is created, by Kafka's names, with values as Kafka prints them."""
        found = {
            "min.insync.replicas": str(self.min_insync_replicas),
            "cleanup.policy": str(self.cleanup_policy),
            "unclean.leader.election.enable": str(self.unclean_leader_election).lower(),
            **self.configs,
        }
        if self.retention is not None:
            found["retention.ms"] = (
                str(self.retention // timedelta(milliseconds=1))
                if isinstance(self.retention, timedelta)
                else _UNLIMITED
            )
        if self.retention_bytes is not None:
            found["retention.bytes"] = str(int(self.retention_bytes))
        return found

    def managed_configs(self) -> dict[str, str]:
        """Return the configs that a topic that exists is to have: those that are written, and no unclean elections."""
        always = "unclean_leader_election"
        return {
            name: value
            for name, value in self.topic_configs().items()
            if (key := _KEYS.get(name)) is None or key == always or self.is_written(key)
        }


_KEYS = {
    "min.insync.replicas": "min_insync_replicas",
    "cleanup.policy": "cleanup_policy",
    "unclean.leader.election.enable": "unclean_leader_election",
    "retention.ms": "retention",
    "retention.bytes": "retention_bytes",
}
