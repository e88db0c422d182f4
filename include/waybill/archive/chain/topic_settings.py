"""The settings of archived topics, stored beside the chains: number of partitions, and the topic's own configs.

A restore can create a topic again with them. The watch looks at them once a day and stores a version when they differ
from the last stored one, as an object that is created if absent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Self

from waybill.base.documents import read_document
from waybill.base.errors import DocumentDamaged
from waybill.config import names
from waybill.services.store import Store

_VERSION = 1


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """A topic as its cluster described it."""

    topic: str
    topic_id: str
    partitions: int
    config: Mapping[str, str]
    """The configs that are set for the topic itself."""

    def to_json(self) -> bytes:
        return json.dumps({"v": _VERSION, **asdict(self)}, sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes, key: str) -> Self:
        """Parse the document; `key` names it in errors. Raises `DocumentTooNew` or `DocumentDamaged`."""
        try:
            fields = read_document(data, _VERSION, key)
            config = {str(name): str(value) for name, value in fields["config"].items()}
            return cls(str(fields["topic"]), str(fields["topic_id"]), int(fields["partitions"]), config)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DocumentDamaged(
                f"{key} does not hold the settings of a topic ({type(error).__name__}: {error}): remove it; the watch "
                f"stores them again"
            ) from None


def record_topic_settings(store: Store, settings: TopicSettings, now_ms: int) -> bool:
    """Store the settings of a topic if they differ from the last stored ones. Return whether they did."""
    if find_topic_settings(store, settings.topic) == settings:
        return False
    key = names.topic_settings_key(store.prefix, settings.topic, now_ms)
    return store.create_or_read_existing(key, settings.to_json()) is None


def find_topic_settings(store: Store, topic: str) -> TopicSettings | None:
    """Return the last stored settings of a topic; None if there are none."""
    *_, last = (None, *store.keys(names.topic_settings_prefix(store.prefix, topic)))
    return None if last is None else TopicSettings.from_json(store.read(last), last)
