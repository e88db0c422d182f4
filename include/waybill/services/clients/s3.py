"""botocore clients for an S3 endpoint: where keys come from, and how they are renewed.

Keys come from the connection; or from a role that is assumed with them (or with the keys that botocore finds), whose
temporary keys botocore renews some minutes before they expire, for the life of the process; or from botocore's default
chain: environment, profile, web identity, container, instance.

botocore is imported where it is used: its import and a client take a quarter of a second of CPU, and most lanes find
nothing new and make no call to S3.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

from waybill.base.errors import ConfigError, StoreUnavailable
from waybill.base.metering import meter
from waybill.config.connections import AssumedRole, Checksums, S3Endpoint

if TYPE_CHECKING:
    from botocore.config import Config
    from botocore.credentials import DeferredRefreshableCredentials, ReadOnlyCredentials
    from botocore.exceptions import ClientError

_STS_OPTIONS: dict[str, Any] = {
    "connect_timeout": 5,
    "read_timeout": 20,
    "retries": {"mode": "standard", "total_max_attempts": 5},
}
"""Options of botocore's `Config` for requests to STS. Timeouts in seconds."""

_creating = threading.Lock()
"""Threads share a session, and botocore's sessions must not create two clients at once."""


def s3_client(endpoint: S3Endpoint, config: Config) -> Any:
    """Return botocore's S3 client. Raises `ConfigError` when the connection names a profile that does not exist."""
    if endpoint.checksums is not Checksums.CRC32C:
        # By default, botocore adds a CRC-32 to every body, and requests one in answers.
        from botocore.config import Config as BotoConfig

        config = config.merge(
            BotoConfig(request_checksum_calculation="when_required", response_checksum_validation="when_required")
        )
    client = service_client(endpoint, "s3", config)
    # These events come once for each try, so repeated requests are counted too.
    client.meta.events.register("before-send.s3", _count_request)
    client.meta.events.register("response-received.s3", _count_answer)
    return client


def service_client(endpoint: S3Endpoint, service: str, config: Config, *, region: str | None = None) -> Any:
    """Return botocore's client of any AWS service, with the keys of an AWS connection.

    `region`: None stands for the connection's region.

    Raises `ConfigError` when the connection names a profile that does not exist.
    """
    with _creating:
        return _create_client(endpoint, service, config, region)


def _create_client(endpoint: S3Endpoint, service: str, config: Config, region: str | None) -> Any:
    session = _session(endpoint)
    if endpoint.role is None:  # with a role, the session has its own keys
        keys = {
            "aws_access_key_id": endpoint.access_key,
            "aws_secret_access_key": endpoint.secret_key,
            "aws_session_token": endpoint.session_token,
        }
    else:
        keys = {}
    return session.create_client(
        service,
        region_name=region or find_region(endpoint),
        endpoint_url=endpoint.endpoint_url,
        verify=endpoint.ca_file,
        config=config,
        **keys,
    )


def _count_request(request: Any, event_name: str, **_: Any) -> None:
    meter.count_request(event_name.rpartition(".")[2], int(request.headers.get("Content-Length") or 0))


def _count_answer(response_dict: dict[str, Any] | None, event_name: str, **_: Any) -> None:
    """Count the body of an answer: that of HeadObject has none, although its header gives a length."""
    if response_dict is not None and not event_name.endswith(".HeadObject"):
        meter.count_received(int(response_dict["headers"].get("content-length") or 0))


def find_region(endpoint: S3Endpoint) -> str:
    """Return the connection's region, else that of the environment or the profile, else us-east-1."""
    return endpoint.region or str(_session(endpoint).get_config_variable("region") or "us-east-1")


def renewed_keys(endpoint: S3Endpoint) -> ReadOnlyCredentials | None:
    """Return the keys that are valid now, for a client that cannot renew them. Call it before each use: it is cheap.

    Return None when the connection has neither role nor profile: then its keys do not change, or the client finds them
    as botocore would. Raises `ConfigError` when the role is refused, `StoreUnavailable` when STS does not answer.
    """
    return None if endpoint.role is None and endpoint.profile is None else current_keys(endpoint)


def current_keys(endpoint: S3Endpoint) -> ReadOnlyCredentials:
    """Return the keys that are valid now, from any source. Call it again before they expire.

    Raises `ConfigError` when there are no keys or the role is refused, `StoreUnavailable` when STS does not answer.
    """
    from botocore.credentials import ReadOnlyCredentials
    from botocore.exceptions import BotoCoreError, ClientError

    if endpoint.role is None and endpoint.access_key:
        return ReadOnlyCredentials(endpoint.access_key, endpoint.secret_key, endpoint.session_token)
    try:
        credentials = _session(endpoint).get_credentials()
        keys: ReadOnlyCredentials | None = credentials.get_frozen_credentials() if credentials else None
    except ClientError as error:
        raise role_error(endpoint, error) from error
    except BotoCoreError as error:
        raise StoreUnavailable(f"no keys for S3: {error}. Check {endpoint.remedy}") from error
    if keys is None:
        whose = "there are no keys for S3" if endpoint.profile is None else f"profile {endpoint.profile!r} has no keys"
        raise ConfigError(f"{whose}. Check {endpoint.remedy}")
    return keys


def role_error(endpoint: S3Endpoint, error: ClientError) -> ConfigError | StoreUnavailable:
    """Return Waybill's error for an error answer of STS."""
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
    from botocore.exceptions import InvalidConfigError, ProfileNotFound

    try:
        return _session_as(endpoint)
    except (ProfileNotFound, InvalidConfigError) as error:
        raise ConfigError(f"{endpoint.remedy}: {error}") from error


@functools.cache
def _plain_session() -> Any:
    """Return the process's botocore session without a role or profile.

    boto3's session would add a third of a second for resources and transfers that Waybill does not use. The session is
    shared, since each one parses botocore's list of endpoints, which takes an eighth of a second.
    """
    import botocore.session

    return botocore.session.get_session()


@functools.lru_cache(maxsize=8)
def _session_as(endpoint: S3Endpoint) -> Any:
    """Return the session of a connection with a profile or role. Its clients share the keys that STS returned."""
    import botocore.session

    session: Any = botocore.session.Session(profile=endpoint.profile)
    session.get_scoped_config()  # raises when there is no such profile
    if endpoint.access_key:
        session.set_credentials(endpoint.access_key, endpoint.secret_key, endpoint.session_token)
    if endpoint.role is not None:
        session._credentials = _credentials(session, endpoint, endpoint.role)
    return session


def _credentials(session: Any, endpoint: S3Endpoint, role: AssumedRole) -> DeferredRefreshableCredentials:
    from botocore.config import Config
    from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials

    config = Config(**_STS_OPTIONS)
    create = functools.partial(
        session.create_client,
        region_name=endpoint.region or session.get_config_variable("region") or "us-east-1",
        endpoint_url=role.sts_endpoint_url,
        verify=endpoint.ca_file if role.sts_endpoint_url else None,
    )

    def create_sts(service: str, **keys: Any) -> Any:
        return create(service, **{**keys, "config": config})

    arguments = {
        "RoleSessionName": role.session_name,
        "ExternalId": role.external_id,
        "DurationSeconds": role.duration_seconds,
    }
    source = session.get_credentials()
    if source is None:
        raise ConfigError(f"there are no keys to assume the role {role.arn} with: set them in {endpoint.remedy}")
    fetcher = AssumeRoleCredentialFetcher(
        create_sts,
        source,
        role.arn,
        extra_args={key: value for key, value in arguments.items() if value is not None},
    )
    return DeferredRefreshableCredentials(refresh_using=fetcher.fetch_credentials, method="assume-role")
