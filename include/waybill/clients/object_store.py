"""Many reads of S3 objects at little cost: obstore, Python's binding of Rust's `object_store`.

A read by botocore takes 1 to 3 ms of CPU, whatever its size, and holds the interpreter's lock for most of it; here it
is a third of a millisecond, without the lock (docs/decisions/0015). What it does not do is what `Store` is for: tell a
missing object from a refused one in our words, and create.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from obstore.store import S3Store

from waybill.clients.s3 import keys_of_now, region
from waybill.connections import S3Endpoint

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config, S3Credential

__all__ = ["object_store"]

_CONNECT_TIMEOUT = timedelta(seconds=5)
_TIMEOUT = timedelta(seconds=20)
_RETRIES = 1
_KEYS_LAST = timedelta(minutes=10)
"""obstore asks for keys again five minutes before they end; botocore renews its own at least ten minutes before."""


def object_store(endpoint: S3Endpoint, bucket: str) -> S3Store:
    """A client for reads of that bucket. Its threads begin with the first one, and do not survive a fork.

    Raises `ConfigError` when the connection names a profile that there is not.
    """
    options: ClientConfig = {"connect_timeout": _CONNECT_TIMEOUT, "timeout": _TIMEOUT}
    if endpoint.ca_file is not None:
        options["root_certificate"] = Path(endpoint.ca_file).read_bytes()
    config: S3Config = {"region": region(endpoint)}
    if endpoint.endpoint_url is not None:
        options["allow_http"] = endpoint.endpoint_url.startswith("http://")
        config["endpoint"] = endpoint.endpoint_url

    def keys() -> S3Credential:
        found = keys_of_now(endpoint)
        return {
            "access_key_id": found.access_key or "",
            "secret_access_key": found.secret_key or "",
            "token": found.token,
            "expires_at": datetime.now(UTC) + _KEYS_LAST,
        }

    return S3Store(
        bucket,
        config=config,
        client_options=options,
        retry_config={"max_retries": _RETRIES},
        credential_provider=keys,
    )
