"""The services behind a config, opened by connections from the environment."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from waybill.config import Config
from waybill.coordination import Coordinator
from waybill.store import Store

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

__all__ = ["open_catalog", "open_coordinator", "open_store"]


def open_store(config: Config, bucket: str | None = None) -> Store:
    """The archive's bucket, or another one of the same S3."""
    return Store.of(config.storage, bucket=bucket)


@contextlib.contextmanager
def open_catalog(config: Config) -> Iterator[Catalog]:
    """The Iceberg catalog."""
    # Here, for the other commands' sake: PyIceberg takes a second to import.
    from waybill.tables import catalog_of

    with catalog_of(config) as catalog:
        yield catalog


def open_coordinator(config: Config, stream: str) -> Coordinator:
    """ZooKeeper, for the nodes of a stream's generation. To be entered."""
    return Coordinator.of(config, stream)
