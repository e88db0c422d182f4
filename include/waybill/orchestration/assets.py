"""A stream's tables as Airflow's assets: what one DAG makes, and others wait for."""

from __future__ import annotations

from airflow.sdk import Asset

from waybill import names
from waybill.config import Config, Stream

__all__ = ["table_asset"]


def table_asset(config: Config, stream: Stream) -> Asset:
    """The table of a stream's generation."""
    table = names.table_name(stream.table, stream.generation)
    path = table.replace(".", "/")
    # With another scheme than x-…, Airflow loads all providers, boto3 with them, to ask who knows it.
    return Asset(name=table, uri=f"x-iceberg://{config.catalog.connection}/{path}", group="waybill")
