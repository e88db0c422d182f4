"""A file of a table on S3, read and written by Arrow's client, whose requests are counted.

Arrow does not show its requests, so they are derived from the known behaviour of its client (Arrow 26, checked against
an access log by `tests/integration/test_cost.py`). Opening a file is a HeadObject, and a file of metadata is then read
whole by one GetObject. A file that is written is one PutObject, or a multipart upload with parts of 10 MiB. For a
Parquet file that is read, one GetObject is counted here, for the footer; the reader of the columns counts the others
(`waybill.tables.staging.file_reader`). A request that Arrow repeats is counted once.
"""

from __future__ import annotations

from typing import Any, cast

from pyarrow.fs import FileInfo
from pyiceberg.io import InputStream, OutputStream
from pyiceberg.io.pyarrow import PyArrowFile

from waybill.base.metering import meter

_PART_BYTES = 10 << 20
"""Arrow's size of a part (`kPartUploadSize`)."""


class MeteredFile(PyArrowFile):
    """PyIceberg's file on Arrow's S3 client, which counts its requests for a stream (`account`)."""

    def __init__(self, file: PyArrowFile, account: str) -> None:
        super().__init__(file.location, file._path, file._filesystem, file._buffer_size)
        self._account = account

    def _file_info(self) -> FileInfo:
        meter.count_request("HeadObject", account=self._account)
        try:
            return super()._file_info()
        except FileNotFoundError:  # then Arrow has also requested a folder of this name
            meter.count_request("ListObjectsV2", account=self._account)
            raise

    def open(self, seekable: bool = True) -> InputStream:
        """Return the stream to read. Raises as PyIceberg's class does."""
        stream = super().open(seekable)
        meter.count_request("HeadObject", account=self._account)
        meter.count_request("GetObject", account=self._account)
        if seekable and not self.location.endswith(".parquet"):
            meter.count_received(cast("Any", stream).size(), account=self._account)
        return stream

    def create(self, overwrite: bool = False) -> OutputStream:
        """Return the stream to write. Raises as PyIceberg's class does."""
        return cast("OutputStream", _MeteredStream(super().create(overwrite), self._account))


class _MeteredStream:
    """An output stream that counts the requests of the upload when it is closed."""

    def __init__(self, stream: OutputStream, account: str) -> None:
        self._stream = stream
        self._account = account
        self._size = 0
        self.closed = False

    def write(self, data: bytes) -> int:
        """Append bytes."""
        self._size += len(data)
        return self._stream.write(data)

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._size

    def flush(self) -> None:
        """Do nothing: S3 creates an object as a whole."""

    def close(self) -> None:
        """Create the object. Raises `OSError`, as Arrow does."""
        if self.closed:
            return
        self.closed = True
        self._stream.close()
        if self._size < _PART_BYTES:
            meter.count_request("PutObject", self._size, account=self._account)
            return
        meter.count_request("CreateMultipartUpload", account=self._account)
        meter.count_request("UploadPart", self._size, account=self._account, times=-(-self._size // _PART_BYTES))
        meter.count_request("CompleteMultipartUpload", account=self._account)

    def __enter__(self) -> _MeteredStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: Any, trace: Any) -> None:
        if kind is None:
            self.close()
        else:
            self.closed = True
            self._stream.__exit__(kind, value, trace)
