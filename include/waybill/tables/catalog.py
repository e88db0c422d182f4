"""The Iceberg catalog, and the files of its tables."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator

from pyarrow.fs import FileSystem, S3FileSystem
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from waybill.connections import CatalogEndpoint, S3Endpoint
from waybill.errors import CatalogUnavailable, ConfigError

__all__ = ["TableIO", "available", "file_io", "io_properties", "open_catalog"]

log = logging.getLogger(__name__)

CATALOG_NAME = "waybill"
"""A SQL catalog keeps its tables under the name it was opened by: Spark's has to have the same."""

_SQLITE_PATIENCE_SECONDS = 60
_ATTEMPTS = 4
_PAUSE_SECONDS = 0.1


class TableIO(PyArrowFileIO):
    """PyIceberg's own file IO, but that a small file on S3 takes one request and not a multipart upload's three."""

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> FileSystem:
        made = super()._initialize_fs(scheme, netloc)
        if not isinstance(made, S3FileSystem):
            return made
        _, (settings,) = made.__reduce__()  # what it would be pickled as: its own arguments
        return S3FileSystem(**{**settings, "allow_delayed_open": True})


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


def io_properties(s3: S3Endpoint) -> dict[str, str]:
    """`s3` as PyIceberg's properties. They hold secrets: not for logs, plans or table properties."""
    found = {
        "s3.endpoint": s3.endpoint_url,
        "s3.region": s3.region or ("us-east-1" if s3.endpoint_url else None),
        "s3.access-key-id": s3.access_key,
        "s3.secret-access-key": s3.secret_key,
        "s3.session-token": s3.session_token,
    }
    return {"py-io-impl": f"{TableIO.__module__}.{TableIO.__name__}"} | {
        k: v for k, v in found.items() if v is not None
    }


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
