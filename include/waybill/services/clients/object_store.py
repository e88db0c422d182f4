"""Many cheap reads of S3 objects with obstore, the Python binding of Rust's `object_store`.

A read of any size by botocore takes 2 ms of CPU, and holds the interpreter's lock for most of this time. With obstore
it takes a third of a millisecond, without the lock (docs/decisions/0015). `Store` remains for everything else: it
creates objects, and its errors distinguish a missing object from a refused one.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from obstore.store import S3Store

from waybill.config.connections import S3Endpoint
from waybill.services.clients.s3 import current_keys, find_region

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config, S3Credential

_CONNECT_TIMEOUT = timedelta(seconds=5)
_TIMEOUT = timedelta(seconds=20)
_RETRIES = 1
_KEYS_LIFETIME = timedelta(minutes=10)
"""obstore requests new keys five minutes before this time ends. botocore renews its own at least ten minutes before."""


def object_store(endpoint: S3Endpoint, bucket: str) -> S3Store:
    """Return a client for reads of a bucket. Its threads start with the first read, and do not survive a fork.

    Raises `ConfigError` when the connection names a profile that does not exist.
    """
    options: ClientConfig = {"connect_timeout": _CONNECT_TIMEOUT, "timeout": _TIMEOUT}
    if endpoint.ca_file is not None:
        options["root_certificate"] = Path(endpoint.ca_file).read_bytes()
    config: S3Config = {"region": find_region(endpoint)}
    if endpoint.endpoint_url is not None:
        options["allow_http"] = endpoint.endpoint_url.startswith("http://")
        config["endpoint"] = endpoint.endpoint_url

    def keys() -> S3Credential:
        current = current_keys(endpoint)
        return {
            "access_key_id": current.access_key or "",
            "secret_access_key": current.secret_key or "",
            "token": current.token,
            "expires_at": datetime.now(UTC) + _KEYS_LIFETIME,
        }

    return S3Store(
        bucket,
        config=config,
        client_options=options,
        retry_config={"max_retries": _RETRIES},
        credential_provider=keys,
    )
