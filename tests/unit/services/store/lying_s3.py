"""S3 in memory in place of botocore's client, which keeps its promises but for those that a test lets it break."""

# ruff: noqa: N803 - the arguments' names are botocore's
from __future__ import annotations

import base64
import hashlib
import io
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import crc32c
from botocore.exceptions import ClientError

WHEN = datetime(2026, 11, 25, tzinfo=UTC)


def refusal(code: str, status: int, message: str = "refused") -> ClientError:
    """Return botocore's error for an error answer."""
    answer: Any = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "Call")


@dataclass
class Stored:
    """An object, and how it was created."""

    content: bytes
    by_parts: bool
    modified: datetime


@dataclass
class LyingS3:
    """The methods of botocore's S3 client that a probe and a store call."""

    overwrites: set[tuple[str, str]] = field(default_factory=set)
    """(`put` or `multipart`, `put` or `multipart`): the create that ignores its condition, over an object of which."""
    says_412_but_overwrites: bool = False
    hides_for_reads: int = 0
    """How many reads of an object that exists find nothing."""
    hides_in_listings: int = 0
    checks_put: bool = True
    checks_parts: bool = True
    unknown_arguments: dict[str, ClientError] = field(default_factory=dict)
    """What a call with such an argument is answered."""
    failing: dict[str, Exception] = field(default_factory=dict)
    """What a call is answered, by its name."""
    lost_answers: set[str] = field(default_factory=set)
    """Calls that are done, whose first answer is lost: botocore has tried them again by itself."""
    objects: dict[str, Stored] = field(default_factory=dict)
    uploads: dict[str, bytes] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    now: datetime = WHEN

    def close(self) -> None:
        pass

    def _begin(self, call: str, arguments: dict[str, Any]) -> None:
        self.calls[call] += 1
        if call in self.failing:
            raise self.failing[call]
        for name in arguments:
            if name in self.unknown_arguments:
                raise self.unknown_arguments[name]

    def _create(self, how: str, key: str, content: bytes, condition: str | None) -> None:
        found = self.objects.get(key)
        if condition == "*" and found is not None:
            over = "multipart" if found.by_parts else "put"
            if self.says_412_but_overwrites:
                found.content = content
            if (how, over) not in self.overwrites:
                raise refusal("PreconditionFailed", 412)
        self.objects[key] = Stored(content, how == "multipart", self.now)

    def put_object(self, *, Key: str, Body: Any, IfNoneMatch: str | None = None, **more: Any) -> dict[str, Any]:
        condition = {} if IfNoneMatch is None else {"IfNoneMatch": IfNoneMatch}
        self._begin("put_object", {**condition, **more})
        if self.checks_put:
            check_body(bytes(Body), more)
        self._create("put", Key, bytes(Body), IfNoneMatch)
        if "put_object" in self.lost_answers:
            self.lost_answers.remove("put_object")
            raise refusal("PreconditionFailed", 412)
        return {"ETag": "e"}

    def create_multipart_upload(self, *, Key: str, **more: Any) -> dict[str, Any]:
        self._begin("create_multipart_upload", more)
        upload = f"{Key}-{self.calls.total()}"
        self.uploads[upload] = b""
        return {"UploadId": upload}

    def upload_part(self, *, UploadId: str, Body: Any, **more: Any) -> dict[str, Any]:
        self._begin("upload_part", more)
        if self.checks_parts:
            check_body(bytes(Body), more)
        self.uploads[UploadId] += bytes(Body)
        return {"ETag": "e"}

    def complete_multipart_upload(
        self, *, Key: str, UploadId: str, IfNoneMatch: str | None = None, **more: Any
    ) -> dict[str, Any]:
        self._begin("complete_multipart_upload", {"IfNoneMatch": IfNoneMatch, **more})
        self._create("multipart", Key, self.uploads[UploadId], IfNoneMatch)
        del self.uploads[UploadId]
        if "complete_multipart_upload" in self.lost_answers:
            self.lost_answers.remove("complete_multipart_upload")
            raise refusal("NoSuchUpload", 404)
        return {"ETag": "e"}

    def abort_multipart_upload(self, *, UploadId: str, **more: Any) -> None:
        self._begin("abort_multipart_upload", more)
        if self.uploads.pop(UploadId, None) is None:
            raise refusal("NoSuchUpload", 404)

    def get_object(self, *, Key: str, **more: Any) -> dict[str, Any]:
        self._begin("get_object", more)
        if Key not in self.objects:
            raise refusal("NoSuchKey", 404)
        if self.hides_for_reads:
            self.hides_for_reads -= 1
            raise refusal("NoSuchKey", 404)
        content = self.objects[Key].content
        return {"Body": io.BytesIO(content), "ContentLength": len(content), "Metadata": {}}

    def list_objects_v2(self, *, Prefix: str, **more: Any) -> dict[str, Any]:
        self._begin("list_objects_v2", more)
        found = sorted(key for key in self.objects if key.startswith(Prefix))
        if self.hides_in_listings and found:
            self.hides_in_listings -= 1
            found = found[:-1]
        return {"Contents": [{"Key": key, "LastModified": self.objects[key].modified} for key in found]}

    def delete_object(self, *, Key: str, **more: Any) -> None:
        self._begin("delete_object", more)
        self.objects.pop(Key, None)


def check_body(body: bytes, arguments: dict[str, Any]) -> None:
    """Refuse a body whose checksum is another one."""
    crc = base64.b64encode(crc32c.crc32c(body).to_bytes(4, "big")).decode()
    md5 = base64.b64encode(hashlib.md5(body).digest()).decode()
    if arguments.get("ChecksumCRC32C", crc) != crc or arguments.get("ContentMD5", md5) != md5:
        raise refusal("BadDigest", 400)
