"""The lease table of a Kinesis Client Library: the positions of another consumer in each shard.

The table is in DynamoDB, with one item for each shard (KCL 1, 2 and 3). The fields that are read: `leaseKey`, the
shard's id; `checkpoint`, a sequence number or one of TRIM_HORIZON, LATEST, AT_TIMESTAMP and SHARD_END; and
`checkpointSubSequenceNumber`, the number of the last user record within a KPL aggregate. A consumer of several streams
has leases with the key `<account>:<stream>:<creation>:<shard>`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from waybill.base.errors import ConfigError, KinesisUnavailable
from waybill.config.connections import Connection, S3Endpoint
from waybill.config.connections.s3 import service_url
from waybill.services.clients.s3 import service_client

_TIMEOUT_SECONDS = 20
_ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease: a shard, and the checkpoint of the consumer."""

    shard_id: str
    checkpoint: str
    sub_sequence: int
    """0 for a record that is no aggregate."""
    stream: str = ""
    """Only of a consumer of several streams."""


def read_leases(conn: Connection, table: str) -> list[Lease]:
    """Return all leases of a table, by shard.

    `conn`: an Airflow AWS connection; `service_config.dynamodb.endpoint_url` in its extra is DynamoDB's address, if it
    is not AWS'. Raises `ConfigError` when there is no such table, it holds something else, or access is denied;
    `KinesisUnavailable` when DynamoDB does not answer.
    """
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    endpoint = S3Endpoint.of(conn).model_copy(update={"endpoint_url": service_url(conn, "dynamodb")})
    options = Config(
        connect_timeout=_TIMEOUT_SECONDS, read_timeout=_TIMEOUT_SECONDS, retries={"total_max_attempts": _ATTEMPTS}
    )
    client = service_client(endpoint, "dynamodb", options)
    try:
        return sorted((_lease(item, table) for item in _items(client, table)), key=lambda each: each.shard_id)
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code == "ResourceNotFoundException":
            raise ConfigError(
                f"DynamoDB has no table {table!r}: its name is that of the KCL application. Check the region of "
                f"connection {conn.conn_id!r}"
            ) from error
        if code.startswith("AccessDenied"):
            raise ConfigError(
                f"the identity of connection {conn.conn_id!r} may not read table {table!r}: allow dynamodb:Scan"
            ) from error
        raise KinesisUnavailable(f"table {table!r} of DynamoDB could not be read: {error}") from error
    except BotoCoreError as error:
        raise KinesisUnavailable(f"table {table!r} of DynamoDB could not be read: {error}") from error
    finally:
        client.close()


def _items(client: Any, table: str) -> Iterator[Mapping[str, Any]]:
    for page in client.get_paginator("scan").paginate(TableName=table, ConsistentRead=True):
        yield from page["Items"]


def _lease(item: Mapping[str, Any], table: str) -> Lease:
    try:
        key = str(item["leaseKey"]["S"])
        checkpoint = str(item["checkpoint"]["S"])
        sub_sequence = int(item.get("checkpointSubSequenceNumber", {}).get("N", 0))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"table {table!r} holds an item that is no lease of the Kinesis Client Library ({error!r} is missing): "
            f"give the name of the KCL application"
        ) from error
    parts = key.split(":")
    return Lease(parts[-1], checkpoint, sub_sequence, parts[1] if len(parts) == 4 else "")
