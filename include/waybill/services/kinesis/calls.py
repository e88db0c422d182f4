"""One call to Kinesis: its retries, and its errors as Waybill's.

botocore sends each request once, and tenacity repeats it: after throttling (other consumers share a shard's quota),
errors of the server, broken connections, and answers that are cut short or lack a field. A call that fails repeatedly
raises `KinesisUnavailable`. An error that no retry can solve raises `ConfigError` with the remedy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from waybill.base.errors import ConfigError, KinesisUnavailable, WaybillError
from waybill.config.connections import S3Endpoint
from waybill.services.clients.s3 import role_error, service_client
from waybill.services.kinesis.answers import UnreadableAnswer, register

if TYPE_CHECKING:
    from botocore.exceptions import ClientError
    from tenacity import Retrying

Sleep = Callable[[float], None]

_CONNECT_TIMEOUT_SECONDS = 5
_READ_TIMEOUT_SECONDS = 20
_CONNECTIONS = 10
_ATTEMPTS = 8
# No try begins after this time, so that all tries end within the two minutes that a lane's task has beyond its budget.
_RETRY_SECONDS = 60
_FIRST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 5.0

_TRANSIENT = frozenset(
    {
        "InternalFailure",
        "InternalFailureException",
        "KMSThrottlingException",
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "RequestTimeout",
        "RequestTimeoutException",
        "ResourceInUseException",  # the stream is being created, or changes
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
_BAD_KEYS = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "IncompleteSignatureException",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)


class KinesisAction(StrEnum):
    """The actions of Kinesis that Waybill uses. IAM's names are the same, behind `kinesis:`."""

    LIST_STREAMS = "ListStreams"
    DESCRIBE_STREAM_SUMMARY = "DescribeStreamSummary"
    LIST_SHARDS = "ListShards"
    GET_SHARD_ITERATOR = "GetShardIterator"
    GET_RECORDS = "GetRecords"

    @property
    def method(self) -> str:
        """The name of botocore's method."""
        return self.name.lower()


class KinesisRefusal(Exception):
    """Kinesis refused a call with an error code that the caller handles."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code
        self.reason = reason


class _Transient(Exception):
    """A try failed, and the next one may succeed."""


class KinesisCalls:
    """botocore's client for one region, which the first call creates. Several threads may share it."""

    def __init__(
        self,
        endpoint: S3Endpoint,
        region: str | None = None,
        *,
        client: Any = None,
        attempts: int = _ATTEMPTS,
        sleep: Sleep = time.sleep,
    ) -> None:
        self._endpoint = endpoint
        self._region = region
        self._client = client
        self._attempts = attempts
        self._sleep = sleep

    @property
    def client(self) -> Any:
        """botocore's client. Raises `ConfigError` when the connection names a profile that does not exist."""
        if self._client is None:
            self._client = _create_client(self._endpoint, self._region)
        return self._client

    def close(self) -> None:
        """Close the connections, if there are any."""
        if self._client is not None:
            self._client.close()

    def ask(
        self,
        action: KinesisAction,
        what: str,
        arguments: Mapping[str, Any],
        *,
        required: Collection[str],
        refusals: Collection[str] = (),
    ) -> Mapping[str, Any]:
        """Return Kinesis' answer, which has the `required` fields. `what` names the stream or shard in errors.

        Raises `KinesisRefusal` for an error code of `refusals`; `ConfigError` when access is denied, or the stream, the
        shard or the key does not exist; `KinesisUnavailable` when no try gave a usable answer.
        """
        from tenacity import (
            Retrying,
            retry_if_exception_type,
            stop_after_attempt,
            stop_after_delay,
            wait_random_exponential,
        )

        retrying = Retrying(
            retry=retry_if_exception_type(_Transient),
            stop=stop_after_attempt(self._attempts) | stop_after_delay(_RETRY_SECONDS),
            wait=wait_random_exponential(multiplier=_FIRST_PAUSE_SECONDS, max=_LONGEST_PAUSE_SECONDS),
            sleep=self._sleep,
            reraise=True,
        )
        try:
            answer: Mapping[str, Any] = retrying(self._try, action, what, arguments, required, refusals)
        except _Transient as error:
            raise KinesisUnavailable(
                f"{what}: no usable answer to {action} in {_count(retrying)} tries. The last one: {error}"
            ) from error
        return answer

    def _try(
        self,
        action: KinesisAction,
        what: str,
        arguments: Mapping[str, Any],
        required: Collection[str],
        refusals: Collection[str],
    ) -> Mapping[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError
        from botocore.parsers import ResponseParserError

        try:
            answer: Mapping[str, Any] = getattr(self.client, action.method)(**arguments)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code in refusals:
                raise KinesisRefusal(code, _reason(error)) from error
            raise self._translate(action, what, code, error) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise ConfigError(f"{what}: could not call {action}: {error}. Set them in {self._remedy}") from error
        except (BotoCoreError, ResponseParserError, UnreadableAnswer, OSError) as error:
            raise _Transient(str(error)) from error
        missing = [name for name in required if answer.get(name) is None]
        if missing:
            raise _Transient(f"the answer lacks {', '.join(missing)}")
        return answer

    def _translate(self, action: KinesisAction, what: str, code: str, error: ClientError) -> WaybillError | _Transient:
        if error.operation_name == "AssumeRole":
            refused = role_error(self._endpoint, error)
            return refused if isinstance(refused, ConfigError) else KinesisUnavailable(str(refused))
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        reason = _reason(error)
        if code in _TRANSIENT or status == 429 or status >= 500:
            return _Transient(f"{code or status}: {reason}")
        if code == "ResourceNotFoundException":
            return ConfigError(
                f"{what} does not exist ({action}: {reason}). Correct its name, and check region_name and the account "
                f"of {self._remedy}"
            )
        if code.startswith("KMS"):
            return ConfigError(
                f"{what} is encrypted, and its key cannot be used ({action}: {code}: {reason}). Enable the key in KMS, "
                f"and allow the action kms:Decrypt to the identity of {self._remedy}, in the key's policy too"
            )
        if code in _BAD_KEYS:
            return ConfigError(f"{what}: {action} was refused ({code}: {reason}). Check the keys of {self._remedy}")
        if "AccessDenied" in code or status == 403:
            return ConfigError(
                f"{what}: {action} is not allowed ({code}: {reason}). Allow the action kinesis:{action} on it to the "
                f"identity of {self._remedy}"
            )
        if 400 <= status < 500:
            return ConfigError(f"{what}: {action} was refused ({code}: {reason}). Check the stream, and {self._remedy}")
        return _Transient(f"{code or status}: {reason}")

    @property
    def _remedy(self) -> str:
        return self._endpoint.remedy


def _count(retrying: Retrying) -> int:
    return int(retrying.statistics["attempt_number"])


def _reason(error: ClientError) -> str:
    details = error.response.get("Error", {})
    return str(details.get("Message") or "no message")


def _create_client(endpoint: S3Endpoint, region: str | None) -> Any:
    from botocore.config import Config

    client = service_client(
        endpoint,
        "kinesis",
        Config(
            connect_timeout=_CONNECT_TIMEOUT_SECONDS,
            read_timeout=_READ_TIMEOUT_SECONDS,
            retries={"mode": "standard", "total_max_attempts": 1},
            max_pool_connections=_CONNECTIONS,
        ),
        region=region,
    )
    register(client)
    return client
