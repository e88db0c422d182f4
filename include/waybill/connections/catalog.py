"""The Iceberg catalog's connection."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from waybill.connections.connection import Connection, Endpoint
from waybill.errors import ConfigError

__all__ = ["CatalogEndpoint"]


class CatalogEndpoint(Endpoint):
    """Which Iceberg catalog: `properties` go to `pyiceberg.catalog.load_catalog`, S3's own added by the caller."""

    properties: dict[str, str] = Field(repr=False)

    @classmethod
    def of(cls, conn: Connection) -> CatalogEndpoint:
        """The host is the catalog's `uri`; the extra's entries are PyIceberg properties (`type`, `warehouse`, …)."""
        properties = {str(key): _property(conn, str(key), value) for key, value in conn.extra.items()}
        conn.require(properties.get("type"), "'type' in its extra (sql, rest, glue, hive)")
        if properties["type"] != "glue":  # which is found by the region
            properties.setdefault("uri", conn.require(conn.host, "host (the catalog's URI)"))
        return cls(conn_id=conn.conn_id, properties=properties)


def _property(conn: Connection, key: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        raise ConfigError(f"connection {conn.conn_id!r}: {key} in its extra must be text or a number")
    return str(value)
