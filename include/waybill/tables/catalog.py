"""The Iceberg catalog, and the files of its tables."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io import FileIO, load_file_io
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from waybill.config import Config, Storage
from waybill.connections import CatalogEndpoint, S3Endpoint, connection
from waybill.errors import CatalogUnavailable, ConfigError
from waybill.tables.files import io_properties

__all__ = ["available", "catalog_of", "file_io", "open_catalog", "task_io"]

logger = logging.getLogger(__name__)

CATALOG_NAME = "waybill"
"""A SQL catalog keeps its tables under the name it was opened by: Spark's has to have the same."""

_SQLITE_PATIENCE_SECONDS = 60
_ATTEMPTS = 4
_PAUSE_SECONDS = 0.1


@contextlib.contextmanager
def catalog_of(config: Config) -> Iterator[Catalog]:
    """The catalog that the config names, closed at the end. Raises as `open_catalog` does."""
    s3 = S3Endpoint.of(connection(config.storage.connection))
    with contextlib.closing(open_catalog(CatalogEndpoint.of(connection(config.catalog.connection)), s3)) as catalog:
        yield catalog


def open_catalog(endpoint: CatalogEndpoint, s3: S3Endpoint) -> Catalog:
    """The catalog of a connection; its tables' files are reached through `s3`. Close it after use.

    Raises `CatalogUnavailable` when it cannot be reached, `ConfigError` when its properties do not make a catalog.
    """
    properties = {**io_properties(s3), **endpoint.properties}
    if properties.get("uri", "").startswith("sqlite"):
        properties["uri"] = _patient(properties["uri"])
    for attempt in range(_ATTEMPTS):
        try:
            return load_catalog(endpoint.properties.get("name", CATALOG_NAME), **properties)
        except OperationalError as error:
            # Two processes that meet a new SQLite file both create its tables, and one of them is told they exist.
            if attempt + 1 == _ATTEMPTS:
                raise CatalogUnavailable(f"the Iceberg catalog cannot be opened: {error.orig}") from error
            time.sleep(_PAUSE_SECONDS * 2**attempt)
        except (ValueError, ImportError) as error:
            raise ConfigError(f"the connection of the Iceberg catalog is not usable: {error}") from error
    raise AssertionError("unreachable")


def task_io(storage: Storage, catalog_connection: str, location: str) -> FileIO:
    """Files of a table, on an executor: by the names of connections that a job carries."""
    s3 = S3Endpoint.of(connection(storage.connection))
    return file_io(CatalogEndpoint.of(connection(catalog_connection)), s3, location)


def file_io(endpoint: CatalogEndpoint, s3: S3Endpoint, location: str) -> FileIO:
    """Files of a table, without asking the catalog: what an executor needs."""
    return load_file_io({**io_properties(s3), **endpoint.properties}, location)


@contextlib.contextmanager
def available(what: str) -> Iterator[None]:
    """Turn a database that is locked or away into `CatalogUnavailable`."""
    try:
        yield
    except (OperationalError, PoolTimeout) as error:
        raise CatalogUnavailable(f"the Iceberg catalog did not answer ({what}): {error}") from error


def _patient(uri: str) -> str:
    """SQLite's catalog is one file that all processes share: wait for its lock rather than fail after 5 s."""
    if "timeout=" in uri:
        return uri
    return f"{uri}{'&' if '?' in uri else '?'}timeout={_SQLITE_PATIENCE_SECONDS}"
