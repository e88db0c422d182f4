"""The keys of decisions about the Kafka cluster."""

from __future__ import annotations

from waybill.config.names.segments import Folder, own_key
from waybill.config.names.topics import check_topic


def topic_changes_prefix(prefix: str) -> str:
    """Return the prefix of all records of changes to topics. Their keys sort by time."""
    return own_key(prefix, Folder.KAFKA, "changes", "")


def topic_change_key(prefix: str, at_ms: int) -> str:
    """Return the key of the record of a change that a person ordered at a time. Epoch ms."""
    return f"{topic_changes_prefix(prefix)}{at_ms:020d}.json"


def throttles_prefix(prefix: str) -> str:
    """Return the prefix of the records of replication throttles that Waybill has set and not removed yet."""
    return own_key(prefix, Folder.KAFKA, "throttles", "")


def throttle_key(prefix: str, topic: str, at_ms: int) -> str:
    """Return the key of the record of a throttle for the copies of a topic. `at_ms`: when it was set, epoch ms."""
    return f"{throttles_prefix(prefix)}{check_topic(topic)}/{at_ms:020d}.json"


def republish_key(prefix: str, topic: str, generation: int, partition: int, number: int) -> str:
    """Return the key of a record of lost messages that are published again: the records of a chain are numbered."""
    name = f"{generation}_{partition}_{number:06d}.json"
    return own_key(prefix, Folder.KAFKA, "republished", check_topic(topic), name)


def republish_done_key(prefix: str, topic: str, generation: int, partition: int, number: int) -> str:
    """Return the key of the mark that all messages of such a record are published."""
    return republish_key(prefix, topic, generation, partition, number).removesuffix(".json") + ".done.json"


def republish_abandoned_key(prefix: str, topic: str, generation: int, partition: int, number: int) -> str:
    """Return the key of the decision to leave such a record unfinished."""
    return republish_key(prefix, topic, generation, partition, number).removesuffix(".json") + ".abandoned.json"
