"""Removal of tables' files from S3, by botocore.

Arrow's `delete_file` sees to it that the folder of what it removes stays: it creates an empty object of the folder's
name. S3 has no folders, and nobody would ever remove that object.

The files of tables on S3: PyIceberg's own file IO, with the S3 connection's keys, role and encryption.

Arrow's S3 client can neither take on a role with an external id, nor say how an object is to be encrypted. So keys that
change are asked of botocore, and a client of Arrow's is made anew when they did; and where the connection says how to
encrypt, files are written by botocore.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import lru_cache
from typing import Any, cast

import pyarrow as pa
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from pyarrow.fs import FileSystem, S3FileSystem
from pyiceberg.io import FileIO, InputFile, OutputFile, OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from s3transfer.manager import TransferConfig, TransferManager

from waybill.clients.s3 import region, renewed_keys, s3_client
from waybill.connections import Encryption, S3Endpoint
from waybill.errors import DamagedFile, StoreUnavailable

__all__ = ["S3Removal", "TableIO", "damage_named", "files_reachable", "io_properties", "remove_files"]

logger = logging.getLogger(__name__)

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
                    logger.info("bucket %s: several objects at once could not be removed: %s", self.bucket, error)
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


_ENDPOINT = "waybill.s3"
_PART_BYTES = 16 << 20
_REMOVAL_THREADS = 8
_KEYS = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token")
_OF_S3 = ("AWS Error", "Expected to be able to read")
"""What Arrow says where S3 answered with an error, or with less than it announced."""


@contextmanager
def files_reachable(what: str = "the files of the stream's tables") -> Iterator[None]:
    """Turn what Arrow's client for S3 raises, which PyIceberg reads and writes metadata with, into `StoreUnavailable`.

    Other errors of the system pass. `what` cannot be reached then.
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            raise
        raise StoreUnavailable(f"{what} cannot be reached: {error}") from error


@contextmanager
def damage_named(table: str, path: str) -> Iterator[None]:
    """Turn what Arrow raises where a data file of `table` is not what was written into `DamagedFile`.

    An `OSError` that means that the file is gone, or cannot be reached, passes.
    """
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DamagedFile(table, path, str(error)) from error
    except (FileNotFoundError, PermissionError):
        raise
    except OSError as error:
        if error.errno is not None or any(words in str(error) for words in _OF_S3):
            raise
        # So Arrow calls what its Thrift, and its codecs, do not understand.
        raise DamagedFile(table, path, str(error)) from error


def io_properties(s3: S3Endpoint) -> dict[str, str]:
    """`s3` as PyIceberg's properties. They hold secrets: not for logs, plans or table properties."""
    found = {
        "s3.endpoint": s3.endpoint_url,
        "s3.region": s3.region or ("us-east-1" if s3.endpoint_url else None),
        **dict(zip(_KEYS, (s3.access_key, s3.secret_key, s3.session_token), strict=True)),
    }
    if s3.role or s3.profile or s3.encryption or s3.ca_file:
        found[_ENDPOINT] = s3.model_dump_json()
        found["s3.region"] = region(s3)
    if s3.role or s3.profile:
        found |= dict.fromkeys(_KEYS)  # those of the connection are for taking on the role, not for S3
    return {"py-io-impl": f"{TableIO.__module__}.{TableIO.__name__}"} | {
        k: v for k, v in found.items() if v is not None
    }


class TableIO(PyArrowFileIO):
    """PyIceberg's file IO for the connection in its properties, made by `io_properties`.

    A small file on S3 takes one request, and not a multipart upload's three.
    """

    def __init__(self, properties: dict[str, str] | None = None) -> None:
        properties = properties or {}
        self._endpoint = S3Endpoint.model_validate_json(properties[_ENDPOINT]) if _ENDPOINT in properties else None
        self._keys: Any = None
        self._made: Callable[[str, str | None], FileSystem]
        super().__init__(properties)

    @property
    def fs_by_scheme(self) -> Callable[[str, str | None], FileSystem]:
        """Where PyIceberg gets its file systems from: always ones whose keys are good."""
        keys = self._renewed_keys()
        if keys != self._keys:
            self._keys = keys
            self._made = lru_cache(self._initialize_fs)
        return self._made

    @fs_by_scheme.setter
    def fs_by_scheme(self, made: Callable[[str, str | None], FileSystem]) -> None:
        self._made = made

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_made": None}

    def _renewed_keys(self) -> Any:
        # Keys in the properties all the same are the catalog's own, for this table.
        vended = any(key in self.properties for key in _KEYS)
        return None if self._endpoint is None or vended else renewed_keys(self._endpoint)

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> FileSystem:
        given = dict(self.properties)
        if self._keys is not None:
            values = (self._keys.access_key, self._keys.secret_key, self._keys.token)
            given |= {key: value for key, value in zip(_KEYS, values, strict=True) if value is not None}
        made = PyArrowFileIO(given)._initialize_fs(scheme, netloc)
        if not isinstance(made, S3FileSystem):
            return made
        _, (settings,) = made.__reduce__()  # what it would be pickled as: its own arguments
        settings["allow_delayed_open"] = True
        if self._endpoint is not None and self._endpoint.ca_file is not None:
            settings["tls_ca_file_path"] = self._endpoint.ca_file
        return S3FileSystem(**settings)

    def new_output(self, location: str) -> PyArrowFile:
        """A file to write; encrypted as the S3 connection says."""
        found = super().new_output(location)
        if self._endpoint is None or self._endpoint.encryption is None or not location.startswith("s3"):
            return found
        return _EncryptedFile(found, self._endpoint, self._endpoint.encryption)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Remove a file; on S3 it makes no difference whether there is one. Raises `OSError`."""
        where = location if isinstance(location, str) else location.location
        removal, key = self._removal(where)
        if removal is None:
            super().delete(where)
        else:
            removal.remove(key)

    def delete_together(self, locations: Iterable[str]) -> list[str]:
        """Remove files on S3, many by a request. Returns the locations that this cannot be done with.

        Raises botocore's `BotoCoreError` when S3 does not answer.
        """
        left: list[str] = []
        found: dict[str, tuple[S3Removal, dict[str, str]]] = {}
        for location in locations:
            removal, key = self._removal(location)
            if removal is None:
                left.append(location)
            else:
                _, of_bucket = found.setdefault(removal.bucket, (removal, {}))
                of_bucket[key] = location
        for removal, by_key in found.values():
            left += [by_key[key] for key in removal.remove_all(list(by_key))]
        return left

    def _removal(self, location: str) -> tuple[S3Removal | None, str]:
        scheme, netloc, path = self.parse_location(location, self.properties)
        bucket, _, key = path.partition("/")
        return S3Removal.like(self.fs_by_scheme(scheme, netloc), bucket), key


def remove_files(io: FileIO, locations: Iterable[str]) -> None:
    """Remove files that nothing references, as far as it can be done.

    What stays is an orphan, which maintenance removes: no reason to fail.
    """
    left = list(locations)
    if isinstance(io, TableIO):
        try:
            left = io.delete_together(left)
        except Exception as error:  # no keys, or no answer: one by one would take just as long each
            logger.warning("%d files stay as orphans: %s", len(left), error)
            return
    with ThreadPoolExecutor(_REMOVAL_THREADS) as pool:
        for removal in [pool.submit(io.delete, location) for location in left]:
            removal.exception()


class _EncryptedFile(PyArrowFile):
    """A file on S3 that comes into being encrypted."""

    def __init__(self, file: PyArrowFile, endpoint: S3Endpoint, encryption: Encryption) -> None:
        super().__init__(file.location, file._path, file._filesystem, file._buffer_size)
        self._endpoint = endpoint
        self._encryption = encryption

    def create(self, overwrite: bool = False) -> OutputStream:
        """As PyIceberg's: `FileExistsError` where there is one already that must not be replaced."""
        if not overwrite and self.exists():
            raise FileExistsError(f"Cannot create file, already exists: {self.location}")
        return cast("OutputStream", _EncryptedStream(self._path, self._endpoint, self._encryption))


class _EncryptedStream:
    """Bytes on the way to S3: beyond a part's size they wait on disk. The object is there when `close` returns."""

    def __init__(self, path: str, endpoint: S3Endpoint, encryption: Encryption) -> None:
        self._bucket, _, self._key = path.partition("/")
        self._endpoint, self._encryption = endpoint, encryption
        self._content = tempfile.SpooledTemporaryFile(max_size=_PART_BYTES)  # noqa: SIM115 (see close)
        self.closed = False

    def write(self, data: bytes) -> int:
        """Append bytes."""
        return self._content.write(data)

    def tell(self) -> int:
        """How many bytes were written."""
        return self._content.tell()

    def flush(self) -> None:
        """Nothing: an object comes into being whole."""

    def close(self) -> None:
        """Create the object. Raises `OSError`, as Arrow does."""
        if self.closed:
            return
        self.closed = True
        with self._content as content:
            content.seek(0)
            client = s3_client(self._endpoint, Config(retries={"mode": "standard", "total_max_attempts": 5}))
            for call in (
                "PutObject",
                "CreateMultipartUpload",
            ):  # the transfer manager does not know all of the arguments
                client.meta.events.register(f"provide-client-params.s3.{call}", self._encrypted)
            limits = TransferConfig(multipart_threshold=_PART_BYTES, multipart_chunksize=_PART_BYTES)
            try:
                with TransferManager(client, limits) as manager:
                    manager.upload(content, self._bucket, self._key).result()
            except (BotoCoreError, ClientError) as error:
                raise OSError(f"s3://{self._bucket}/{self._key} could not be written: {error}") from error
            finally:
                client.close()

    def _encrypted(self, params: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {**params, **self._encryption.arguments()}

    def __enter__(self) -> _EncryptedStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:  # what is half written must not come into being
            self.closed = True
            self._content.close()
