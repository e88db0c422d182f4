"""Configs with streams in groups, and results that stay in memory."""

from __future__ import annotations

from typing import Any

from waybill.config.models import Config


def config_of(groups: dict[str, Any] | None = None, **streams: dict[str, Any]) -> Config:
    """Return a config with these streams; each is given as what differs from a stream with all defaults."""
    plain = {"parser": {"event_time": {"field": "at"}, "message_id": "id"}}
    return Config.model_validate(
        {
            "version": 1,
            "storage": {"bucket": "archive", "prefix": "p"},
            "groups": groups or {},
            "streams": {
                name: {**plain, "topics": [name], "table": f"x.{name}", **changes} for name, changes in streams.items()
            },
        }
    )


class StoreInMemory:
    """The part of a store that results need."""

    prefix = "p"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.writes = 0

    def replace(self, key: str, data: bytes) -> None:
        self.objects[key] = data
        self.writes += 1

    def read_if_exists(self, key: str) -> bytes | None:
        return self.objects.get(key)
