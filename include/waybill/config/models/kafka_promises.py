"""Promises about the Kafka cluster itself: what the watch reports when the log is not as safe as it should be."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from waybill.config.models.base import Section, ValueType
from waybill.config.models.promises import CriticalPromise, Promise, PromiseSeverity
from waybill.config.models.quantities import DurationBetween, IsRatio, IsShare, WholeNumberBetween

_Wait = Annotated[timedelta, DurationBetween("0s", "1d")]


class KafkaPromiseName(StrEnum):
    """What can be promised about the cluster: the keys of `kafka.promises`, after `kafka_`."""

    OFFLINE_PARTITIONS = "kafka_offline_partitions"
    UNDER_MIN_ISR = "kafka_under_min_isr"
    SINGLE_IN_SYNC_REPLICA = "kafka_single_in_sync_replica"
    UNDER_REPLICATED = "kafka_under_replicated"
    LEADER_SKEW = "kafka_leader_skew"
    REPLICA_SKEW = "kafka_replica_skew"
    BELOW_DECLARED = "kafka_below_declared"
    UNCLEAN_ELECTION = "kafka_unclean_election"
    CONTROLLERS = "kafka_controllers"
    DISK_USED = "kafka_disk_used"
    CLOCK_SKEW = "kafka_clock_skew"
    UNMATCHED_TOPICS = "kafka_unmatched_topics"
    MISSING_TOPICS = "kafka_missing_topics"
    GROUP_LAG = "kafka_group_lag"
    ACCESS = "kafka_access"

    @property
    def key(self) -> str:
        """The key of `kafka.promises`."""
        return self.value.removeprefix("kafka_")


class IsNamePattern(ValueType):
    """A regular expression for a whole name."""

    type_name = "pattern"
    allowed = "a regular expression that matches the whole name"

    def parse(self, value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise ValueError("must be a regular expression, as text")
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from None
        return value


class Lasting(CriticalPromise):
    """A state of topic-partitions that may last for a short time. A time alone is the limit."""

    limit: _Wait = Field(timedelta(0), description="The promise is broken when the state has lasted longer.")


class SingleInSync(Lasting):
    """Topic-partitions with several replicas, of which one is in sync."""

    limit: _Wait = Field(timedelta(minutes=1), description="The promise is broken when the state has lasted longer.")


class UnderReplicated(Lasting):
    """Topic-partitions of which a replica is not in sync."""

    severity: PromiseSeverity = Field(
        PromiseSeverity.WARNING, description="`critical`, `warning` (which waits for the end of quiet hours), or `off`."
    )
    limit: _Wait = Field(
        timedelta(minutes=5),
        description="The promise is broken when the state has lasted longer. What is over before that is history: "
        "`waybill kafka health --history`.",
    )


class Skew(Promise):
    """How much more one broker has than it would have if all had the same."""

    limit: Annotated[Decimal, IsRatio()] = Field(
        Decimal("1.5"), description="The promise is broken above this ratio to an equal share."
    )
    min_partitions: Annotated[int, WholeNumberBetween(1, 1_000_000)] = Field(
        30, description="A cluster with fewer topic-partitions breaks no promise."
    )


class Controllers(CriticalPromise):
    """How far a controller of the quorum is behind the leader of the quorum."""

    limit: Annotated[timedelta, DurationBetween("1s", "1d")] = Field(
        timedelta(seconds=30), description="The promise is broken beyond it."
    )


class DiskUsed(CriticalPromise):
    """The share of a broker's disk that is used."""

    limit: Annotated[Decimal, IsShare()] = Field(Decimal("0.85"), description="The promise is broken beyond it.")


class KafkaClockSkew(Promise):
    """How far the timestamps of new messages are ahead of the watch's clock."""

    limit: Annotated[timedelta, DurationBetween("1s", "365d")] = Field(
        timedelta(minutes=10), description="The promise is broken beyond it."
    )


class UnmatchedTopics(Promise):
    """Topics that no stream archives."""

    severity: PromiseSeverity = Field(
        PromiseSeverity.OFF, description="`critical`, `warning` (which waits for the end of quiet hours), or `off`."
    )
    ignore: tuple[Annotated[str, IsNamePattern()], ...] = Field(
        (), description="Patterns of topics that need no stream. Kafka's internal topics need none."
    )


class GroupLag(Promise):
    """What is promised about one consumer group."""

    limit: Annotated[int, WholeNumberBetween(0, 10**18)] = Field(
        1_000_000, description="The promise is broken when the group has more messages before it."
    )
    commits_within: Annotated[timedelta, DurationBetween("1m", "30d")] = Field(
        timedelta(hours=1),
        description="The promise is broken when the group commits nothing for longer while messages wait for it.",
    )


class KafkaPromises(Section):
    """What the watch checks of the Kafka cluster each minute."""

    offline_partitions: Lasting = Field(Lasting(), description="Topic-partitions without a leader.")
    under_min_isr: Lasting = Field(
        Lasting(), description="Topic-partitions with fewer replicas in sync than `min.insync.replicas`."
    )
    single_in_sync_replica: SingleInSync = Field(
        SingleInSync(), description="Topic-partitions with several replicas, of which one is in sync."
    )
    under_replicated: UnderReplicated = Field(
        UnderReplicated(), description="Topic-partitions of which a replica is not in sync."
    )
    leader_skew: Skew = Field(Skew(), description="How unevenly brokers and racks lead topic-partitions.")
    replica_skew: Skew = Field(Skew(), description="How unevenly replicas are spread over brokers and racks.")
    below_declared: Promise = Field(
        Promise(),
        description="Topics of `kafka.topics` that do not exist, or have fewer replicas or a lower "
        "`min.insync.replicas` than declared.",
    )
    unclean_election: Promise = Field(
        Promise(), description="Topics of streams that allow unclean elections, and are not declared to."
    )
    controllers: Controllers = Field(
        Controllers(), description="How far a controller is behind the quorum's leader, and how long none leads."
    )
    disk_used: DiskUsed = Field(DiskUsed(), description="How full the disks of log directories are.")
    clock_skew: KafkaClockSkew = Field(KafkaClockSkew(), description="How far timestamps of new messages are ahead.")
    unmatched_topics: UnmatchedTopics = Field(UnmatchedTopics(), description="Topics that no stream archives.")
    missing_topics: Promise = Field(Promise(), description="Streams whose topics do not exist.")
    access: Promise = Field(Promise(), description="The user may describe what these promises are about.")
    groups: dict[Annotated[str, IsNamePattern()], GroupLag] = Field(
        {}, description="Consumer groups that are watched, by name or by a pattern of the whole name. No other is."
    )

    def of(self, name: KafkaPromiseName) -> Promise:
        """Return the settings of a promise that has one section."""
        found = getattr(self, name.key)
        assert isinstance(found, Promise)
        return found
