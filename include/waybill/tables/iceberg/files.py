"""Read, write and remove the files of Iceberg tables on S3, with the S3 connection's keys, role and encryption.

`TableIO` is PyIceberg's file IO for Waybill's tables. It uses Arrow's S3 client, and botocore for the features that
Arrow's client lacks:

- Arrow cannot assume a role with an external id. So botocore provides the temporary keys, and `TableIO` makes a new
  Arrow client when they change.
- Arrow cannot set encryption headers. So botocore writes the files if the connection asks for encryption.
- Arrow's `delete_file` creates an empty object in place of the removed file's folder, so that the "folder" remains.
  S3 has no folders, and nothing would ever remove that object. So botocore removes the files.
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

from waybill.base.errors import DamagedFile, StoreUnavailable
from waybill.base.metering import current_account
from waybill.config.connections import Encryption, S3Endpoint
from waybill.services.clients.s3 import find_region, renewed_keys, s3_client
from waybill.tables.iceberg.metered_file import MeteredFile

logger = logging.getLogger(__name__)

_ENDPOINT = "waybill.s3"
"""The property that holds the S3 connection as JSON, if PyIceberg's properties cannot express it."""
_KEYS = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token")

_PART_BYTES = 16 << 20
_REMOVAL_THREADS = 8
_KEYS_PER_REQUEST = 1000
"""S3's limit for `DeleteObjects`."""
_FORBIDDEN = 403
_S3_ERROR_TEXTS = ("AWS Error", "Expected to be able to read")
"""Texts in Arrow's `OSError` when S3 answers with an error, or with fewer bytes than announced."""

_session_lock = threading.Lock()  # botocore's session is not thread-safe


@contextmanager
def translate_storage_errors(what: str = "the files of the stream's tables") -> Iterator[None]:
    """Raise `StoreUnavailable` instead of the `OSError` of Arrow's S3 client, which PyIceberg reads and writes with.

    An `OSError` with an errno comes from the operating system and passes. `what` names the files in the message.
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            raise
        raise StoreUnavailable(f"{what} cannot be reached: {error}") from error


@contextmanager
def translate_damage_errors(table: str, path: str) -> Iterator[None]:
    """Raise `DamagedFile` instead of Arrow's errors for a data file of `table` that is not valid Parquet.

    An `OSError` for a file that is missing or unreachable passes.
    """
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DamagedFile(table, path, str(error)) from error
    except (FileNotFoundError, PermissionError):
        raise
    except OSError as error:
        if error.errno is not None or any(text in str(error) for text in _S3_ERROR_TEXTS):
            raise
        # Arrow also raises OSError when its Thrift decoder or its codecs fail on damaged bytes.
        raise DamagedFile(table, path, str(error)) from error


def io_properties(s3: S3Endpoint) -> dict[str, str]:
    """Return the connection `s3` as PyIceberg's properties.

    They contain secrets: never write them to a logger, a plan or table properties.
    """
    properties = {
        "s3.endpoint": s3.endpoint_url,
        "s3.region": s3.region or ("us-east-1" if s3.endpoint_url else None),
        **dict(zip(_KEYS, (s3.access_key, s3.secret_key, s3.session_token), strict=True)),
    }
    if s3.role or s3.profile or s3.encryption or s3.ca_file:
        properties[_ENDPOINT] = s3.model_dump_json()
        properties["s3.region"] = find_region(s3)
    if s3.role or s3.profile:
        properties |= dict.fromkeys(_KEYS)  # the connection's keys are for assuming the role, not for S3
    return {"py-io-impl": f"{TableIO.__module__}.{TableIO.__name__}"} | {
        k: v for k, v in properties.items() if v is not None
    }


def remove_files(io: FileIO, locations: Iterable[str]) -> None:
    """Remove files that no snapshot references. Never raises: maintenance later removes the files that stay."""
    left = list(locations)
    if isinstance(io, TableIO):
        try:
            left = io.delete_together(left)
        except Exception as error:  # no keys, or no answer from S3: removing the files one by one would fail as well
            logger.warning("files that were not removed and are orphans now: %d: %s", len(left), error)
            return
    with ThreadPoolExecutor(_REMOVAL_THREADS) as pool:
        for removal in [pool.submit(io.delete, location) for location in left]:
            removal.exception()


class TableIO(PyArrowFileIO):
    """PyIceberg's file IO for the S3 connection in its properties, which `io_properties` returns.

    It writes a small file with one request, where PyIceberg's own class needs the three of a multipart upload.
    """

    def __init__(self, properties: dict[str, str] | None = None) -> None:
        properties = properties or {}
        self._endpoint = S3Endpoint.model_validate_json(properties[_ENDPOINT]) if _ENDPOINT in properties else None
        self._keys: Any = None
        self._made: Callable[[str, str | None], FileSystem]
        # PyIceberg's threads work for no stream, so the requests are counted for the stream that opened the table.
        self._account = current_account()
        super().__init__(properties)

    @property
    def fs_by_scheme(self) -> Callable[[str, str | None], FileSystem]:
        """Return the function that PyIceberg calls for a file system, which always has keys that are valid."""
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
        # Keys beside a stored connection are vended by the catalog for this table: they take precedence.
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
        _, (settings,) = made.__reduce__()  # the arguments of its constructor, as pickle would store them
        settings["allow_delayed_open"] = True
        if self._endpoint is not None and self._endpoint.ca_file is not None:
            settings["tls_ca_file_path"] = self._endpoint.ca_file
        return S3FileSystem(**settings)

    def new_input(self, location: str) -> PyArrowFile:
        """Return a file to read."""
        return self._metered(super().new_input(location))

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file to write, with the encryption that the S3 connection asks for."""
        output = super().new_output(location)
        if self._endpoint is None or self._endpoint.encryption is None or not location.startswith("s3"):
            return self._metered(output)
        return _EncryptedFile(output, self._endpoint, self._endpoint.encryption)

    def _metered(self, file: PyArrowFile) -> PyArrowFile:
        return MeteredFile(file, self._account) if file.location.startswith("s3") else file

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Remove a file. On S3 a missing file is no error. Raises `OSError`."""
        path = location if isinstance(location, str) else location.location
        removal, key = self._removal(path)
        if removal is None:
            super().delete(path)
        else:
            removal.remove(key)

    def delete_together(self, locations: Iterable[str]) -> list[str]:
        """Remove files on S3, up to 1,000 per request, and return the locations that could not be removed this way.

        Raises botocore's `BotoCoreError` when S3 does not answer.
        """
        left: list[str] = []
        by_bucket: dict[str, tuple[S3Removal, dict[str, str]]] = {}
        for location in locations:
            removal, key = self._removal(location)
            if removal is None:
                left.append(location)
            else:
                _, locations_by_key = by_bucket.setdefault(removal.bucket, (removal, {}))
                locations_by_key[key] = location
        for removal, locations_by_key in by_bucket.values():
            left += [locations_by_key[key] for key in removal.remove_all(list(locations_by_key))]
        return left

    def _removal(self, location: str) -> tuple[S3Removal | None, str]:
        scheme, netloc, path = self.parse_location(location, self.properties)
        bucket, _, key = path.partition("/")
        return S3Removal.like(self.fs_by_scheme(scheme, netloc), bucket), key


class S3Removal:
    """Removes objects of one bucket by botocore, with the settings of an Arrow S3 client."""

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
        """Return a removal with the settings of `fs`, or None.

        None if `fs` is not an S3 client, or has a setting that is not supported here: anonymous access, a role, a
        proxy.
        """
        if not isinstance(fs, S3FileSystem):
            return None
        _, (settings,) = fs.__reduce__()  # the arguments of its constructor, as pickle would store them
        if settings["anonymous"] or settings["role_arn"] or settings["proxy_options"]["host"]:
            return None
        return cls(settings, bucket)

    def remove(self, key: str) -> None:
        """Remove one object if it exists. Raises `PermissionError` or another `OSError`, as Arrow does."""
        with closing(self._client()) as client:
            try:
                client.delete_object(Bucket=self.bucket, Key=key)
            except (BotoCoreError, ClientError) as error:
                kind = PermissionError if _is_forbidden(error) else OSError
                raise kind(f"s3://{self.bucket}/{key} could not be removed: {error}") from error

    def remove_all(self, keys: Sequence[str]) -> list[str]:
        """Remove objects, 1,000 per request, and return the keys that S3 refuses to remove in a batch."""
        refused: list[str] = []
        with closing(self._client()) as client:
            for batch in _batches(keys):
                try:
                    refused += self._remove_batch(client, batch)
                except ClientError as error:
                    logger.info("bucket %s: a batch of objects could not be removed: %s", self.bucket, error)
                    refused += batch
        return refused

    def _remove_batch(self, client: Any, keys: Sequence[str]) -> list[str]:
        request = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        answer = client.delete_objects(Bucket=self.bucket, Delete=request)
        return [str(error["Key"]) for error in answer.get("Errors", [])]

    def _client(self) -> Any:
        with _session_lock:
            return s3_client(self.endpoint, self._config)


def _is_forbidden(error: BotoCoreError | ClientError) -> bool:
    return isinstance(error, ClientError) and error.response["ResponseMetadata"].get("HTTPStatusCode") == _FORBIDDEN


def _batches(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(keys), _KEYS_PER_REQUEST):
        yield keys[start : start + _KEYS_PER_REQUEST]


class _EncryptedFile(PyArrowFile):
    """A file on S3 that is created with encryption headers."""

    def __init__(self, file: PyArrowFile, endpoint: S3Endpoint, encryption: Encryption) -> None:
        super().__init__(file.location, file._path, file._filesystem, file._buffer_size)
        self._endpoint = endpoint
        self._encryption = encryption

    def create(self, overwrite: bool = False) -> OutputStream:
        """Return the stream to write. Raises `FileExistsError`, as PyIceberg does, if the file must not be replaced."""
        if not overwrite and self.exists():
            raise FileExistsError(f"Cannot create file, already exists: {self.location}")
        return cast("OutputStream", _EncryptedStream(self._path, self._endpoint, self._encryption))


class _EncryptedStream:
    """Collects bytes in memory, or on disk beyond one part's size, and creates the object in `close`."""

    def __init__(self, path: str, endpoint: S3Endpoint, encryption: Encryption) -> None:
        self._bucket, _, self._key = path.partition("/")
        self._endpoint, self._encryption = endpoint, encryption
        self._content = tempfile.SpooledTemporaryFile(max_size=_PART_BYTES)  # noqa: SIM115 (see close)
        self.closed = False

    def write(self, data: bytes) -> int:
        """Append bytes."""
        return self._content.write(data)

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._content.tell()

    def flush(self) -> None:
        """Do nothing: S3 creates an object as a whole."""

    def close(self) -> None:
        """Create the object. Raises `OSError`, as Arrow does."""
        if self.closed:
            return
        self.closed = True
        with self._content as content:
            content.seek(0)
            client = s3_client(self._endpoint, Config(retries={"mode": "standard", "total_max_attempts": 5}))
            # By event, as the transfer manager does not accept all encryption arguments.
            for call in ("PutObject", "CreateMultipartUpload"):
                client.meta.events.register(f"provide-client-params.s3.{call}", self._add_encryption)
            limits = TransferConfig(multipart_threshold=_PART_BYTES, multipart_chunksize=_PART_BYTES)
            try:
                with TransferManager(client, limits) as manager:
                    manager.upload(content, self._bucket, self._key).result()
            except (BotoCoreError, ClientError) as error:
                raise OSError(f"s3://{self._bucket}/{self._key} could not be written: {error}") from error
            finally:
                client.close()

    def _add_encryption(self, params: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {**params, **self._encryption.arguments()}

    def __enter__(self) -> _EncryptedStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:  # an incomplete file must not be created
            self.closed = True
            self._content.close()
