"""Parse the answers of a schema registry: a schema, "not found", or neither.

Any server may be at the address, and any text may be in a registry, so the size, the media type and the types of all
fields of an answer are checked.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import quote

import httpx

MAX_ANSWER_BYTES = 8 << 20
"""The most bytes of an answer. A schema's text in JSON is a little longer than the schema."""
MAX_REFERENCES = 1_000
"""The most schemas that one schema may refer to, directly or through others."""
MAX_SECONDS = 60.0
"""How long a server may send one answer. Timeouts of httpx limit the wait for each part of it only."""

_NOT_FOUND = range(40400, 40500)
"""Confluent's error codes for a missing subject, version or schema. A plain 404 can come from any web server."""
_SHOWN_CHARACTERS = 200


class AnswerKind(Enum):
    """The kinds of answers."""

    SCHEMA = "a schema"
    NOT_FOUND = "not found"
    """The registry has no such schema."""
    STRANGE = "neither"


@dataclass(frozen=True)
class RegistryAnswer:
    """The answer to one request."""

    kind: AnswerKind
    code: int
    """The HTTP status code."""
    status: str
    """Code and reason, and for an unexpected answer its peculiarity: "302 Found, to https://…"."""
    schema: str = ""
    """The text of the schema."""
    schema_type: str = "AVRO"
    references: Any = None
    """The references as the registry states them."""
    is_list: bool = False
    """Whether the body is a JSON list, which a registry answers to a probe."""


@dataclass(frozen=True)
class Reference:
    """A version of a subject, to which a schema refers."""

    subject: str
    version: int

    @property
    def path(self) -> str:
        """The path of the request. A schema keeps its reference to a version that is deleted afterwards."""
        return f"/subjects/{quote(self.subject, safe='')}/versions/{self.version}?deleted=true"

    def __str__(self) -> str:
        return f"{shown(self.subject)} version {self.version}"


def read_answer(client: httpx.Client, url: str) -> RegistryAnswer:
    """Request a URL. Raises `httpx.TransportError`, or `httpx.InvalidURL` and others for an impossible address."""
    started = time.monotonic()
    content = bytearray()
    with client.stream("GET", url) as response:
        status = shown(f"{response.status_code} {response.reason_phrase}")
        try:
            for part in response.iter_bytes():
                content += part
                if len(content) > MAX_ANSWER_BYTES:
                    return _strange(response, f"{status}, and the body is larger than {MAX_ANSWER_BYTES:,} bytes")
                if time.monotonic() - started > MAX_SECONDS:
                    raise httpx.ReadTimeout(f"the answer takes more than {MAX_SECONDS:.0f} s")
        except httpx.DecodingError:
            return _strange(response, f"{status}, and the body cannot be decompressed")
    return _classified(response, status, bytes(content))


def _classified(response: httpx.Response, status: str, content: bytes) -> RegistryAnswer:
    document = _json(content)
    if isinstance(document, list):
        return RegistryAnswer(
            AnswerKind.STRANGE, response.status_code, f"{status}, and a list", is_list=response.is_success
        )
    fields: dict[str, Any] = document if isinstance(document, dict) else {}
    may_be_not_found = response.is_success or response.status_code == httpx.codes.NOT_FOUND
    if may_be_not_found and _is_not_found(fields.get("error_code")):
        return RegistryAnswer(AnswerKind.NOT_FOUND, response.status_code, status)
    if not response.is_success:
        return _strange(response, status + _target(response.headers.get("location", "")))
    schema, schema_type = fields.get("schema"), fields.get("schemaType") or "AVRO"
    if not isinstance(schema, str) or not isinstance(schema_type, str):
        return _strange(response, f"{status}, and the body is no schema")
    return RegistryAnswer(
        AnswerKind.SCHEMA, response.status_code, status, schema, shown(schema_type), fields.get("references")
    )


def _target(location: str) -> str:
    """Return where a redirect leads, without credentials."""
    return f", to {shown(re.sub(r'//[^/@]*@', '//', location.partition('?')[0]))}" if location else ""


def _strange(response: httpx.Response, status: str) -> RegistryAnswer:
    return RegistryAnswer(AnswerKind.STRANGE, response.status_code, status)


def _is_not_found(error_code: Any) -> bool:
    return isinstance(error_code, int) and error_code in _NOT_FOUND


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def read_references(answer: RegistryAnswer) -> list[Reference]:
    """Return the references of a schema. Raise `ValueError` if they do not have the form of a registry's references."""
    if answer.references is None:
        return []
    if not isinstance(answer.references, list):
        raise ValueError("has references that are not a list")
    if len(answer.references) > MAX_REFERENCES:
        raise ValueError(f"refers to more than {MAX_REFERENCES:,} schemas")
    return [_reference(each) for each in answer.references]


def _reference(stated: Any) -> Reference:
    fields = stated if isinstance(stated, dict) else {}
    subject, version = fields.get("subject"), fields.get("version")
    if isinstance(version, str) and version.isascii() and version.isdigit() and len(version) < 10:
        version = int(version)
    if not isinstance(subject, str) or type(version) is not int or not 0 < version < 2**31:
        raise ValueError("has a reference without subject and version")
    if not subject or len(subject) > 1_000 or not _is_unicode(subject):
        raise ValueError(f"refers to {shown(subject) or 'an empty subject'}, which no registry can have")
    return Reference(subject, version)


def _is_unicode(text: str) -> bool:
    try:
        return bool([text.encode()])
    except UnicodeEncodeError:
        return False


def shown(text: str) -> str:
    """Return a text of a server for one line of a message."""
    short = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
    return " ".join(short.encode(errors="backslashreplace").decode().split())
