"""The settings of archived topics, stored beside the chains: number of partitions, and the topic's own configs.

A restore can create a topic again with them. Once a day, the watch compares them with the last stored version, and
stores a new version if they differ, as an object that is created if absent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from waybill.base.documents import As, Document, Stored
from waybill.config import names
from waybill.services.store import Store


def _by_name(document: Any) -> bytes:
    """Return JSON in one line, its fields in the order of their names."""
    return json.dumps(document, sort_keys=True).encode()


def _parse_config(config: Mapping[str, str]) -> dict[str, str]:
    return {str(name): str(value) for name, value in config.items()}


@dataclass(frozen=True, slots=True)
class TopicSettings(Stored):
    """The settings of a topic, as Kafka described them."""

    DOCUMENT: ClassVar = Document(
        "{where} does not hold the settings of a topic ({kind}: {error}): remove it; the watch stores them again",
        converts=True,
        dump=_by_name,
    )

    topic: str
    topic_id: str
    partitions: int
    config: Annotated[Mapping[str, str], As("", _parse_config, dict)]
    """The configs that are set for the topic itself."""


def record_topic_settings(store: Store, settings: TopicSettings, now_ms: int) -> bool:
    """Store the settings of a topic if they differ from the last stored ones. Return whether they differed."""
    if find_topic_settings(store, settings.topic) == settings:
        return False
    key = names.topic_settings_key(store.prefix, settings.topic, now_ms)
    return store.create_or_read_existing(key, settings.to_json()) is None


def find_topic_settings(store: Store, topic: str) -> TopicSettings | None:
    """Return the last stored settings of a topic; None if there are none."""
    *_, last = (None, *store.keys(names.topic_settings_prefix(store.prefix, topic)))
    return None if last is None else TopicSettings.from_json(last, store.read(last))
