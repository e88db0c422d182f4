"""Removal of tables' files from S3, by botocore.

Arrow's `delete_file` sees to it that the folder of what it removes stays: it creates an empty object of the folder's
name. S3 has no folders, and nobody would ever remove that object.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from pyarrow.fs import FileSystem, S3FileSystem

from waybill.clients.s3 import s3_client
from waybill.connections import S3Endpoint

__all__ = ["S3Removal"]

log = logging.getLogger(__name__)

_REQUEST_KEYS = 1000
_NOT_ALLOWED = 403
_one_at_a_time = threading.Lock()  # botocore's session is not for several threads


class S3Removal:
    """Removes objects of one bucket, reached as Arrow's client reaches it."""

    def __init__(self, settings: dict[str, Any], bucket: str) -> None:
        self.bucket = bucket
        url = settings["endpoint_override"] or None
        if url is not None and "://" not in url:
            url = f"{settings['scheme']}://{url}"
        self.endpoint = S3Endpoint(
            endpoint_url=url,
            region=settings["region"] or None,
            access_key=settings["access_key"] or None,
            secret_key=settings["secret_key"] or None,
            session_token=settings["session_token"] or None,
            ca_file=settings["tls_ca_file_path"] or None,
        )
        by_path = url is not None and not settings["force_virtual_addressing"]
        self._config = Config(
            retries={"mode": "standard", "total_max_attempts": 5},
            s3={"addressing_style": "path" if by_path else "auto"},
        )

    @classmethod
    def like(cls, fs: FileSystem, bucket: str) -> S3Removal | None:
        """None where Arrow's client is no client of S3, or has been told what botocore's would not know."""
        if not isinstance(fs, S3FileSystem):
            return None
        _, (settings,) = fs.__reduce__()  # what it would be pickled as: its own arguments
        if settings["anonymous"] or settings["role_arn"] or settings["proxy_options"]["host"]:
            return None
        return cls(settings, bucket)

    def remove(self, key: str) -> None:
        """Remove one object, if there is one. Raises `OSError`, or its `PermissionError`, as Arrow does."""
        with closing(self._client()) as client:
            try:
                client.delete_object(Bucket=self.bucket, Key=key)
            except (BotoCoreError, ClientError) as error:
                kind = PermissionError if _is_refused(error) else OSError
                raise kind(f"s3://{self.bucket}/{key} could not be removed: {error}") from error

    def remove_all(self, keys: Sequence[str]) -> list[str]:
        """Remove objects, a thousand a request. Returns the keys of those that S3 refuses to remove in this way."""
        refused: list[str] = []
        with closing(self._client()) as client:
            for some in _portions(keys):
                try:
                    refused += self._request(client, some)
                except ClientError as error:
                    log.info("bucket %s: several objects at once could not be removed: %s", self.bucket, error)
                    refused += some
        return refused

    def _request(self, client: Any, keys: Sequence[str]) -> list[str]:
        wanted = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        answer = client.delete_objects(Bucket=self.bucket, Delete=wanted)
        return [str(error["Key"]) for error in answer.get("Errors", [])]

    def _client(self) -> Any:
        with _one_at_a_time:
            return s3_client(self.endpoint, self._config)


def _is_refused(error: BotoCoreError | ClientError) -> bool:
    return isinstance(error, ClientError) and error.response["ResponseMetadata"].get("HTTPStatusCode") == _NOT_ALLOWED


def _portions(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(keys), _REQUEST_KEYS):
        yield keys[start : start + _REQUEST_KEYS]
