"""Open the Iceberg catalog, and open the files of its tables with the same settings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    CommitStateUnknownException,
    ForbiddenError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
)
from pyiceberg.io import FileIO, load_file_io
from requests import RequestException
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from waybill.base.errors import CatalogUnavailable, ConfigError
from waybill.config.connections import CatalogEndpoint, S3Endpoint, find_connection
from waybill.config.models import Config, Storage
from waybill.tables.iceberg.files import io_properties

CATALOG_NAME = "waybill"
"""The catalog name in a SQL catalog's rows. Spark has to open the catalog under the same name to see its tables."""

_SQLITE_LOCK_TIMEOUT_SECONDS = 60
_OPEN_ATTEMPTS = 4
_FIRST_PAUSE_SECONDS = 0.1


@contextlib.contextmanager
def catalog_of(config: Config) -> Iterator[Catalog]:
    """Open the catalog that the config names, and close it at the end of the block. Raises as `open_catalog` does."""
    s3 = S3Endpoint.of(find_connection(config.storage.connection))
    with contextlib.closing(
        open_catalog(CatalogEndpoint.of(find_connection(config.catalog.connection)), s3)
    ) as catalog:
        yield catalog


def open_catalog(endpoint: CatalogEndpoint, s3: S3Endpoint) -> Catalog:
    """Return the catalog of a connection, which reads and writes table files through `s3`. The caller closes it.

    Raises `CatalogUnavailable` when the catalog cannot be reached, and `ConfigError` when the connection's properties
    do not describe a catalog.
    """
    properties = {**io_properties(s3), **endpoint.properties}
    if properties.get("uri", "").startswith("sqlite"):
        properties["uri"] = _with_lock_timeout(properties["uri"])
    # Two processes that open a new SQLite file at the same time both create its tables. The second one fails because
    # they exist, and succeeds when it opens the file again.
    retrying = Retrying(
        retry=retry_if_exception_type(OperationalError),
        stop=stop_after_attempt(_OPEN_ATTEMPTS),
        wait=wait_exponential(multiplier=_FIRST_PAUSE_SECONDS),
        reraise=True,
    )
    try:
        return retrying(load_catalog, endpoint.properties.get("name", CATALOG_NAME), **properties)
    except OperationalError as error:
        raise CatalogUnavailable(f"the Iceberg catalog cannot be opened: {error.orig}") from error
    except (ValueError, ImportError) as error:
        raise ConfigError(f"the connection of the Iceberg catalog is not usable: {error}") from error


def task_io(storage: Storage, catalog_connection: str, location: str) -> FileIO:
    """Return the `FileIO` of a table at `location` in a Spark task, which knows connections by their ids only."""
    s3 = S3Endpoint.of(find_connection(storage.connection))
    return file_io(CatalogEndpoint.of(find_connection(catalog_connection)), s3, location)


def file_io(endpoint: CatalogEndpoint, s3: S3Endpoint, location: str) -> FileIO:
    """Return the `FileIO` of a table at `location` without a request to the catalog."""
    return load_file_io({**io_properties(s3), **endpoint.properties}, location)


NO_ANSWER = (
    OperationalError,
    PoolTimeout,
    RequestException,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    CommitStateUnknownException,
)
"""PyIceberg's exceptions when the catalog's database or REST server does not answer, or answers with a server error
(429, 5xx). After a commit, the outcome is then unknown: a proxy may answer 504 although the catalog has committed."""


@contextlib.contextmanager
def translate_catalog_errors(operation: str) -> Iterator[None]:
    """Raise `CatalogUnavailable` instead of the errors for a catalog that is locked, unreachable or failing.

    Raises `ConfigError` instead of the errors of a REST catalog that refuses the credentials. `operation` describes the
    block in the error message.
    """
    try:
        yield
    except NO_ANSWER as error:
        raise CatalogUnavailable(f"the Iceberg catalog did not answer ({operation}): {error}") from error
    except (AuthorizationExpiredError, ForbiddenError, UnauthorizedError) as error:
        raise ConfigError(
            f"the Iceberg catalog refuses the credentials ({operation}): {error}. Check the connection of the catalog"
        ) from error


def _with_lock_timeout(uri: str) -> str:
    """Return a SQLite URI that waits for the lock of the file longer than SQLite's default of 5 seconds.

    All processes share the one file of a SQLite catalog.
    """
    if "timeout=" in uri:
        return uri
    return f"{uri}{'&' if '?' in uri else '?'}timeout={_SQLITE_LOCK_TIMEOUT_SECONDS}"
