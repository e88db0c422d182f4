"""botocore's clients for an endpoint: whose keys, how they are renewed, and what it means when there are none.

Keys come from the connection; or from a role that is taken on with them (or with whatever botocore finds), for which
STS gives keys that are renewed some minutes before they end, for as long as a process lives; or from botocore's own
chain: environment, profile, web identity, container, instance.
"""

from __future__ import annotations

import functools
from typing import Any

import botocore.session
from botocore.config import Config
from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials, ReadOnlyCredentials
from botocore.exceptions import BotoCoreError, ClientError, InvalidConfigError, ProfileNotFound

from waybill.connections import AssumedRole, S3Endpoint
from waybill.errors import ConfigError, StoreUnavailable

__all__ = ["keys_of_now", "region", "renewed_keys", "role_refused", "s3_client"]

_STS_CONFIG = Config(connect_timeout=5, read_timeout=20, retries={"mode": "standard", "total_max_attempts": 5})


def s3_client(endpoint: S3Endpoint, config: Config) -> Any:
    """A client of S3. Raises `ConfigError` when the connection names a profile that there is not."""
    session = _session(endpoint)
    if endpoint.role is None:  # with one, the session has keys of its own
        keys = {
            "aws_access_key_id": endpoint.access_key,
            "aws_secret_access_key": endpoint.secret_key,
            "aws_session_token": endpoint.session_token,
        }
    else:
        keys = {}
    return session.create_client(
        "s3",
        region_name=region(endpoint),
        endpoint_url=endpoint.endpoint_url,
        verify=endpoint.ca_file,
        config=config,
        **keys,
    )


def region(endpoint: S3Endpoint) -> str:
    """The connection's region, else that of the environment or the profile, else us-east-1."""
    return endpoint.region or str(_session(endpoint).get_config_variable("region") or "us-east-1")


def renewed_keys(endpoint: S3Endpoint) -> ReadOnlyCredentials | None:
    """The keys of now, for a client that cannot renew them itself: ask again before each use, it costs nothing.

    None when the connection has neither role nor profile: then its keys do not change, or the client finds them as
    botocore would. Raises `ConfigError` when the role is refused, `StoreUnavailable` when STS does not answer.
    """
    return None if endpoint.role is None and endpoint.profile is None else keys_of_now(endpoint)


def keys_of_now(endpoint: S3Endpoint) -> ReadOnlyCredentials:
    """The keys of now, wherever they come from: ask again from time to time.

    Raises `ConfigError` when there are none or the role is refused, `StoreUnavailable` when STS does not answer.
    """
    if endpoint.role is None and endpoint.access_key:
        return ReadOnlyCredentials(endpoint.access_key, endpoint.secret_key, endpoint.session_token)
    try:
        credentials = _session(endpoint).get_credentials()
        keys: ReadOnlyCredentials | None = credentials.get_frozen_credentials() if credentials else None
    except ClientError as error:
        raise role_refused(endpoint, error) from error
    except BotoCoreError as error:
        raise StoreUnavailable(f"no keys for S3: {error}. Check {endpoint.remedy}") from error
    if keys is None:
        whose = "there are no keys for S3" if endpoint.profile is None else f"profile {endpoint.profile!r} has no keys"
        raise ConfigError(f"{whose}. Check {endpoint.remedy}")
    return keys


def role_refused(endpoint: S3Endpoint, error: ClientError) -> ConfigError | StoreUnavailable:
    """Our error for an answer of STS."""
    arn = endpoint.role.arn if endpoint.role else "?"
    status = error.response["ResponseMetadata"].get("HTTPStatusCode", 0)
    code = error.response["Error"].get("Code", "")
    if 400 <= status < 500 and "Throttl" not in code:
        return ConfigError(
            f"role {arn} was refused ({code}). Check role_arn, ExternalId and keys of {endpoint.remedy}, and the "
            f"role's trust policy"
        )
    return StoreUnavailable(f"role {arn}: STS did not answer ({code})")


def _session(endpoint: S3Endpoint) -> Any:
    if endpoint.role is None and endpoint.profile is None:
        return _plain_session()
    try:
        return _session_as(endpoint)
    except (ProfileNotFound, InvalidConfigError) as error:
        raise ConfigError(f"{endpoint.remedy}: {error}") from error


@functools.cache
def _plain_session() -> Any:
    """Botocore's own session: boto3's adds resources and transfers that nothing here uses, and a third of a second.

    One for the process: each would parse botocore's list of endpoints anew, an eighth of a second every time.
    """
    return botocore.session.get_session()


@functools.lru_cache(maxsize=8)
def _session_as(endpoint: S3Endpoint) -> Any:
    """A session with a profile's or a role's keys. One for each connection: what STS gave is used by all clients."""
    session: Any = botocore.session.Session(profile=endpoint.profile)
    session.get_scoped_config()  # raises when there is no such profile
    if endpoint.access_key:
        session.set_credentials(endpoint.access_key, endpoint.secret_key, endpoint.session_token)
    if endpoint.role is not None:
        session._credentials = _credentials(session, endpoint, endpoint.role)
    return session


def _credentials(session: Any, endpoint: S3Endpoint, role: AssumedRole) -> DeferredRefreshableCredentials:
    create = functools.partial(
        session.create_client,
        region_name=endpoint.region or session.get_config_variable("region") or "us-east-1",
        endpoint_url=role.sts_endpoint_url,
        verify=endpoint.ca_file if role.sts_endpoint_url else None,
    )

    def create_sts(service: str, **keys: Any) -> Any:
        return create(service, **{**keys, "config": _STS_CONFIG})

    arguments = {
        "RoleSessionName": role.session_name,
        "ExternalId": role.external_id,
        "DurationSeconds": role.duration_seconds,
    }
    source = session.get_credentials()
    if source is None:
        raise ConfigError(f"there are no keys to take on role {role.arn} with: set them in {endpoint.remedy}")
    fetcher = AssumeRoleCredentialFetcher(
        create_sts,
        source,
        role.arn,
        extra_args={key: value for key, value in arguments.items() if value is not None},
    )
    return DeferredRefreshableCredentials(refresh_using=fetcher.fetch_credentials, method="assume-role")
