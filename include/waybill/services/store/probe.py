"""The abilities that an S3 store must have, and the probe that tests them.

A probe creates small objects with random names below a separate folder, tries to create them again in each way, reads
and lists them, and removes them. So concurrent probes do not disturb each other, and no other object is changed.

The error for a failed store names its behaviour. A store that does not answer, or refuses the credentials, gets no
result: `StoreUnavailable` and `ConfigError` pass.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from http import HTTPStatus
from typing import Any

from waybill.base.errors import ObjectExists, ObjectMissing, StoreUnavailable, StoreUnfit, WaybillError
from waybill.config import names
from waybill.config.connections import Checksums
from waybill.services.store.calls import BucketCalls, error_code, request_body

logger = logging.getLogger(__name__)


class Ability(StrEnum):
    """The abilities that a store must have. The values are stored: do not change them."""

    PUT_OVER_PUT = "put-over-put"
    PUT_OVER_MULTIPART = "put-over-multipart"
    MULTIPART_OVER_PUT = "multipart-over-put"
    MULTIPART_OVER_MULTIPART = "multipart-over-multipart"
    READ_AFTER_WRITE = "read-after-write"
    LIST_AFTER_WRITE = "list-after-write"
    CHECKSUM_OF_PUT = "checksum-of-put"
    CHECKSUM_OF_PART = "checksum-of-part"

    @property
    def text(self) -> str:
        """The ability as a clause: "can …"."""
        return _TEXTS[self]


_TEXTS = {
    Ability.PUT_OVER_PUT: "refuse PutObject with If-None-Match where PutObject has created the object",
    Ability.PUT_OVER_MULTIPART: "refuse PutObject with If-None-Match where a multipart upload has created the object",
    Ability.MULTIPART_OVER_PUT: "refuse CompleteMultipartUpload with If-None-Match where PutObject has created the "
    "object",
    Ability.MULTIPART_OVER_MULTIPART: "refuse CompleteMultipartUpload with If-None-Match where a multipart upload has "
    "created the object",
    Ability.READ_AFTER_WRITE: "return an object as soon as it is created",
    Ability.LIST_AFTER_WRITE: "list an object as soon as it is created",
    Ability.CHECKSUM_OF_PUT: "refuse PutObject with a wrong checksum",
    Ability.CHECKSUM_OF_PART: "refuse UploadPart with a wrong checksum",
}


def needed_abilities(checksums: Checksums) -> frozenset[Ability]:
    """Return the abilities that a store must have; without checksums, it need not compare them."""
    of_checksums = {Ability.CHECKSUM_OF_PUT, Ability.CHECKSUM_OF_PART} if checksums is Checksums.NONE else set()
    return frozenset(Ability) - of_checksums


@dataclass(frozen=True, slots=True)
class AbilityFinding:
    """Whether the store has an ability."""

    ability: Ability
    lacks: str | None = None
    """The behaviour of the store instead; None: it has the ability."""

    def __str__(self) -> str:
        return f"can {self.ability.text}" if self.lacks is None else f"cannot {self.ability.text}: {self.lacks}"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of a probe."""

    where: str
    """Bucket and address."""
    at: datetime
    findings: tuple[AbilityFinding, ...]
    remedy: str = ""

    @property
    def lacks(self) -> tuple[str, ...]:
        """Return the abilities that the store lacks; empty if it is fit."""
        return tuple(f"it {finding}" for finding in self.findings if finding.lacks is not None)

    @property
    def is_fit(self) -> bool:
        """Return whether the store has every ability."""
        return not self.lacks

    def raise_if_unfit(self) -> None:
        """Raise `StoreUnfit`, with all abilities that the store lacks."""
        if self.lacks:
            raise StoreUnfit(self.where, self.lacks, self.remedy)


_LEFT_BY_KILLED_PROBES = timedelta(days=1)


def probe(calls: BucketCalls, prefix: str, at: datetime) -> ProbeResult:
    """Test the abilities of the store. It takes about 45 requests, and four objects of a few bytes.

    Raises `StoreUnavailable` or `ConfigError`, and `StoreUnfit` if no object can be created at all.
    """
    token = secrets.token_hex(16)
    run = _Probe(calls, names.probe_objects_prefix(prefix, token), token.encode())
    try:
        findings = tuple(run.findings())
        run.find_leftovers(names.probes_prefix(prefix), at - _LEFT_BY_KILLED_PROBES)
    finally:
        run.clean_up()
    remedy = f"Waybill writes nothing there: use a store that can. {calls.checksum_remedy}"
    return ProbeResult(calls.where, at, findings, remedy)


class _Probe:
    def __init__(self, calls: BucketCalls, folder: str, token: bytes) -> None:
        self._calls = calls
        self._folder = folder
        self._token = token
        self._keys: list[str] = []
        self._uploads: list[tuple[str, str]] = []

    def findings(self) -> Iterator[AbilityFinding]:
        """Yield the finding about each ability.

        Each conditional create has a separate object, so they do not affect each other.
        """
        put, upload = (self._put, "PutObject"), (self._upload, "CompleteMultipartUpload")
        creates = {
            Ability.PUT_OVER_PUT: (put, put),
            Ability.PUT_OVER_MULTIPART: (put, upload),
            Ability.MULTIPART_OVER_PUT: (upload, put),
            Ability.MULTIPART_OVER_MULTIPART: (upload, upload),
        }
        unread: str | None = None
        unlisted: str | None = None
        for ability, (_, (create, call)) in creates.items():
            self._create(self._folder + ability, create, call)
            unread = unread or self._read_differs(self._folder + ability)
            unlisted = unlisted or self._list_differs()
        yield AbilityFinding(Ability.READ_AFTER_WRITE, unread)
        yield AbilityFinding(Ability.LIST_AFTER_WRITE, unlisted)
        for ability, ((create, _), _) in creates.items():
            yield AbilityFinding(ability, self._create_again(self._folder + ability, create))
        if self._calls.checksums is Checksums.NONE:
            return
        yield AbilityFinding(Ability.CHECKSUM_OF_PUT, self._accepts_wrong(f"{self._folder}wrong-put", self._put))
        yield AbilityFinding(Ability.CHECKSUM_OF_PART, self._accepts_wrong(f"{self._folder}wrong-part", self._upload))

    def find_leftovers(self, prefix: str, before: datetime) -> None:
        """Let `clean_up` also remove the objects that a killed probe has left."""
        with self._calls.translate_errors(f"list {prefix}"):
            answer = self._calls.client.list_objects_v2(Bucket=self._calls.bucket, Prefix=prefix)
        self._keys += [str(each["Key"]) for each in answer.get("Contents", []) if each["LastModified"] < before]

    def clean_up(self) -> None:
        """Remove the objects and uploads.

        Objects that cannot be removed are logged: they do not make the store unfit.
        """
        for key, upload_id in self._uploads:
            self._try_to_remove(key, "abort_multipart_upload", Key=key, UploadId=upload_id)
        for key in dict.fromkeys(self._keys):
            self._try_to_remove(key, "delete_object", Key=key)

    # --- findings ---

    def _create(self, key: str, create: Callable[..., None], call: str) -> None:
        """Create an object for the tests. Raises `StoreUnfit` if the store refuses.

        If the answer to a first try was lost, S3 answers the second try that the object exists, or that its upload is
        gone.
        """
        try:
            with self._refusals():
                create(key, self._first)
        except ObjectExists:
            return
        except _Refused as refused:
            if self._read_differs(key) is None:
                return
            raise StoreUnfit(
                self._calls.where,
                [f"it cannot create an object with {call}, If-None-Match and a checksum: {refused}"],
                f"Use a store that can. {self._calls.checksum_remedy}",
            ) from refused

    def _create_again(self, key: str, create: Callable[..., None]) -> str | None:
        try:
            with self._refusals():
                create(key, b"the second content of " + self._token)
        except ObjectExists:
            changed = self._read_differs(key)
            return None if changed is None else f"it answered 412, but then {changed}"
        except _Refused as refused:
            return f"it answered {refused} instead of 412"
        changed = self._read_differs(key)
        return f"it answered with success, and {'replaced' if changed else 'kept'} the object"

    def _read_differs(self, key: str) -> str | None:
        try:
            with self._calls.translate_errors(f"read {key}", key):
                answer = self._calls.client.get_object(Bucket=self._calls.bucket, Key=key)
                content = answer["Body"].read()
        except ObjectMissing:
            return "it said that there is no such object"
        return None if content == self._first else "it returned another content"

    def _list_differs(self) -> str | None:
        with self._calls.translate_errors(f"list {self._folder}"):
            answer = self._calls.client.list_objects_v2(Bucket=self._calls.bucket, Prefix=self._folder)
        found, created = [str(entry["Key"]) for entry in answer.get("Contents", [])], sorted(self._keys)
        if found == created:
            return None
        if len(found) != len(created):
            return f"it listed {len(found)} objects instead of {len(created)}"
        return "it listed them in another order than that of their keys"

    def _accepts_wrong(self, key: str, create: Callable[..., None]) -> str | None:
        try:
            with self._refusals():
                create(key, self._first, is_wrong=True)
        except _Refused:
            return None
        return "it answered with success"

    # --- calls ---

    @property
    def _first(self) -> bytes:
        return b"the first content of " + self._token

    def _put(self, key: str, content: bytes, *, is_wrong: bool = False) -> None:
        self._keys.append(key)
        self._calls.client.put_object(
            Bucket=self._calls.bucket,
            Key=key,
            Body=content,
            IfNoneMatch="*",
            **self._checksum(content, is_wrong),
            **self._calls.encryption,
        )

    def _upload(self, key: str, content: bytes, *, is_wrong: bool = False) -> None:
        client, target = self._calls.client, {"Bucket": self._calls.bucket, "Key": key}
        answer = client.create_multipart_upload(**target, **self._calls.upload_arguments, **self._calls.encryption)
        upload_id = str(self._calls.required(answer, "UploadId", "CreateMultipartUpload"))
        self._uploads.append((key, upload_id))
        checksum = self._checksum(content, is_wrong)
        body = request_body(memoryview(content))
        sent = client.upload_part(**target, UploadId=upload_id, PartNumber=1, Body=body, **checksum)
        if is_wrong:
            return
        self._keys.append(key)
        parts = [{**self._calls.part(sent, checksum), "PartNumber": 1}]
        client.complete_multipart_upload(
            **target, UploadId=upload_id, IfNoneMatch="*", MultipartUpload={"Parts": parts}
        )
        self._uploads.remove((key, upload_id))

    def _checksum(self, content: bytes, is_wrong: bool) -> dict[str, str]:
        return self._calls.checksum_arguments(memoryview(b"another content" if is_wrong else content))

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Raise `_Refused` for an answer that shows a missing ability, else Waybill's errors."""
        try:
            with self._calls.translate_errors("probe the store", self._folder):
                yield
        except (StoreUnavailable, StoreUnfit) as error:
            cause: Any = error.__cause__
            response = getattr(cause, "response", None)
            if response is None or not _is_refusal(response["ResponseMetadata"].get("HTTPStatusCode", 0), cause):
                raise
            raise _Refused(str(cause)) from error

    def _try_to_remove(self, key: str, call: str, **arguments: str) -> None:
        try:
            with self._calls.translate_errors(f"remove {key}", key):
                getattr(self._calls.client, call)(Bucket=self._calls.bucket, **arguments)
        except ObjectMissing:
            return
        except WaybillError as error:
            logger.warning("%s: an object of the probe of the store could not be removed: %s", key, error)


class _Refused(Exception):
    """The store refused a request permanently."""


def _is_refusal(status: int, error: Any) -> bool:
    if status == HTTPStatus.NOT_IMPLEMENTED:
        return True
    return (
        HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR
        and status not in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
        and error_code(error) not in ("RequestTimeout", "SlowDown", "ConditionalRequestConflict")
    )
