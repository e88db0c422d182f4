"""S3 for the model check: the double of botocore's client below the real `Store`.

A create is atomic. A multipart upload is invisible until it is completed. A listing is strongly consistent, as
Amazon's is.
"""

# ruff: noqa: N803 - the arguments' names are botocore's
from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import ClientError, ReadTimeoutError
from model_lanes import Begun, Faults, Late, Stored, lane

_WHEN = datetime(2026, 1, 1, tzinfo=UTC)


class Inline:
    """An executor that works in the caller: the lane itself sends the parts."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def shutdown(self, **_: object) -> None:
        pass


class ModelS3:
    """The methods of botocore's S3 client that `Store` calls."""

    def close(self) -> None:
        pass

    # --- creating ---

    def put_object(self, *, Key: str, Body: Any, IfNoneMatch: str = "", Metadata: Any = (), **_: Any) -> dict[str, Any]:
        stored = Stored(bytes(Body), tuple(dict(Metadata).items()))
        apply = _creation(Key, IfNoneMatch, lambda: stored)
        lane().call(f"s3: put {Key}", apply, _create_faults(apply))
        return {"ETag": "e"}

    def create_multipart_upload(self, *, Key: str, Metadata: Any = (), **_: Any) -> dict[str, Any]:
        upload = f"{lane().name}.{lane().calls}"
        world, begun = lane().world, Begun(tuple(dict(Metadata).items()))
        lane().call(f"s3: begin {Key}", lambda: world.uploads.__setitem__(upload, begun), _FAIL, shared=False)
        return {"UploadId": upload}

    def upload_part(self, *, UploadId: str, PartNumber: int, Body: Any, **_: Any) -> dict[str, Any]:
        world, data = lane().world, bytes(Body)

        def apply() -> None:
            if UploadId not in world.uploads:
                raise _refusal("NoSuchUpload", 404)
            world.uploads[UploadId].parts[PartNumber] = data

        lane().call(f"s3: part {PartNumber} of {UploadId}", apply, _FAIL, shared=False)
        return {"ETag": "e"}

    def complete_multipart_upload(
        self, *, Key: str, UploadId: str, MultipartUpload: Any, IfNoneMatch: str = "", **_: Any
    ) -> dict[str, Any]:
        world = lane().world
        numbers = [part["PartNumber"] for part in MultipartUpload["Parts"]]

        def joined() -> Stored:
            if UploadId not in world.uploads:
                raise _refusal("NoSuchUpload", 404)
            begun = world.uploads[UploadId]
            return Stored(b"".join(begun.parts[number] for number in numbers), begun.metadata)

        def apply() -> None:
            _creation(Key, IfNoneMatch, joined)()
            del world.uploads[UploadId]

        lane().call(f"s3: complete {Key}", apply, _create_faults(apply))
        return {"ETag": "e"}

    def abort_multipart_upload(self, *, UploadId: str, **_: Any) -> None:
        world = lane().world
        lane().call(f"s3: abort {UploadId}", lambda: world.uploads.pop(UploadId, None) and None, _FAIL, shared=False)

    def delete_object(self, *, Key: str, **_: Any) -> None:
        world = lane().world
        lane().call(f"s3: delete {Key}", lambda: world.remove(Key), _FAIL)

    # --- reading ---

    def get_object(self, *, Key: str, **_: Any) -> dict[str, Any]:
        stored = lane().call(f"s3: get {Key}", lambda: _existing(Key), _FAIL)
        return {"Body": io.BytesIO(stored.data), "ContentLength": len(stored.data), "Metadata": dict(stored.metadata)}

    def head_object(self, *, Key: str, **_: Any) -> dict[str, Any]:
        stored = lane().call(f"s3: head {Key}", lambda: _existing(Key, code="404"), _FAIL)
        return {"Metadata": dict(stored.metadata), "ContentLength": len(stored.data)}

    def get_paginator(self, operation: str) -> ModelS3:
        assert operation == "list_objects_v2"
        return self

    def paginate(self, *, Prefix: str, StartAfter: str = "", **_: Any) -> Iterator[dict[str, Any]]:
        world = lane().world

        def apply() -> tuple[tuple[str, int], ...]:
            found = ((key, len(stored.data)) for key, stored in world.objects.items())
            return tuple(sorted((key, size) for key, size in found if key.startswith(Prefix) and key > StartAfter))

        listed = lane().call(f"s3: list {Prefix} after {StartAfter!r}", apply, _FAIL)
        yield {"Contents": [{"Key": key, "Size": size, "LastModified": _WHEN} for key, size in listed]}


def _creation(key: str, condition: str, content: Callable[[], Stored]) -> Callable[[], None]:
    world = lane().world

    def apply() -> None:
        stored = content()
        if condition == "*" and world.s3_is_conditional and key in world.objects:
            raise _refusal("PreconditionFailed", 412)
        world.create(key, stored)

    return apply


def _existing(key: str, code: str = "NoSuchKey") -> Stored:
    try:
        return lane().world.objects[key]
    except KeyError:
        raise _refusal(code, 404) from None


# --- faults ---


def _refusal(code: str, status: int) -> ClientError:
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "model")  # type: ignore[typeddict-item]


def _fail() -> Any:
    raise _refusal("InternalError", 500)


_FAIL: Faults = {"answered with 500, not done": _fail}


def _create_faults(apply: Callable[[], None]) -> Faults:
    def answer_lost() -> None:
        apply()
        raise ReadTimeoutError(endpoint_url="model")

    def answer_lost_and_retried() -> None:
        apply()
        apply()

    def conflict() -> None:
        raise _refusal("ConditionalRequestConflict", 409)

    def late() -> None:
        lane().world.late.append(Late(lane().pending, apply))
        raise ReadTimeoutError(endpoint_url="model")

    return {
        "done, the answer lost": answer_lost,
        "done, the answer lost, and sent again by the client": answer_lost_and_retried,
        "answered with 409": conflict,
        "timed out, and still on its way": late,
        **_FAIL,
    }
