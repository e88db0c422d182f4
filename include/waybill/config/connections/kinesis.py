"""The connection of Kinesis: an Airflow AWS connection, which can be the same as that of S3."""

from __future__ import annotations

from typing import Self

from waybill.config.connections.connection import Connection
from waybill.config.connections.s3 import S3Endpoint, service_url


class KinesisEndpoint(S3Endpoint):
    """Address and credentials of Kinesis: region, keys, profile or role as for S3. `encryption` is S3's alone.

    A stream's encryption needs no option: Kinesis decrypts records for every client with the right to use the stream's
    key.
    """

    @classmethod
    def of(cls, conn: Connection) -> Self:
        """Read an Airflow AWS connection. `service_config.kinesis.endpoint_url` takes precedence over `endpoint_url`.

        Raises `ConfigError` as `S3Endpoint.of` does.
        """
        fields = dict(S3Endpoint.of(conn))
        url = service_url(conn, "kinesis")
        return cls(**{**fields, "endpoint_url": url or fields["endpoint_url"]})
