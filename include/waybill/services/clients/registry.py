"""Schemas of a schema registry, by id: Confluent's REST API, which Karapace, Apicurio and Redpanda serve too.

A schema id never changes its meaning, so a client keeps every answer for its lifetime. It only reads.
https://docs.confluent.io/platform/current/schema-registry/develop/api.html

**An answer concerns one schema, or the registry.** A message may hold any id, so an answer about one id must not stop
the others. 401 concerns the registry. So does 403, unless the registry has given these credentials another schema. Any
other answer that is neither a schema nor Confluent's "not found" (a page of HTML, a redirect, `error_code` 0) concerns
the id, if the server has proved to be a registry: it has given another schema, or answers the list of its schema types.

This is not confluent-kafka's `SchemaRegistryClient`: that client sends no headers of the user (for example a token),
retries by count and not for a time, does not cache "not found", puts the body of an answer into its errors, trusts
certifi's CAs instead of the system's, and adds six packages to every Spark executor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential_jitter

from waybill.base.errors import RegistryRefused, RegistryUnavailable
from waybill.config.connections import RegistryEndpoint
from waybill.services.clients.registry_answers import (
    MAX_REFERENCES,
    AnswerKind,
    Reference,
    RegistryAnswer,
    read_answer,
    read_references,
)

PATIENCE_SECONDS = 60.0
"""How long requests to a registry that does not answer are repeated before the task fails."""
MAX_SCHEMA_ID = 2**31 - 1
"""An id is an int of Java. A registry answers a larger one with errors of many kinds, so none is requested."""
MAX_CHARACTERS = 16 << 20
"""The most characters of a schema and the schemas that it refers to."""

_TIMEOUT = httpx.Timeout(20.0, connect=5.0)
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_PROBES = ("/schemas/types", "/subjects")
"""Paths at which every registry answers with a list. With a wrong base path, neither of them exists."""


@dataclass(frozen=True)
class RegisteredSchema:
    """A registered schema."""

    kind: str
    """`AVRO`, `PROTOBUF` or `JSON`."""
    text: str
    referenced: tuple[str, ...] = ()
    """The texts of the schemas that it refers to, directly or through others, each after the schemas on which it
    depends."""


@dataclass(frozen=True)
class UnusableSchema:
    """The registry has no usable schema for the id, or its answer about the id cannot be parsed."""

    reason: str
    """Continues "the schema with the id 7 …"."""


class SchemaRegistry:
    """A client of one registry. Only one thread may use it."""

    def __init__(self, endpoint: RegistryEndpoint, patience_seconds: float | None = None) -> None:
        """Create the client, without a request. `patience_seconds`: default `PATIENCE_SECONDS`.

        Raises `ConfigError` for TLS files that cannot be used.
        """
        self._endpoint = endpoint
        self._patience_seconds = PATIENCE_SECONDS if patience_seconds is None else patience_seconds
        self._tls: Any = endpoint.tls.context() if endpoint.tls else True
        self._answers: dict[str, RegistryAnswer] = {}
        self._open: httpx.Client | None = None
        self._is_connected = False
        self._has_given_schemas = False
        self._forbidden: RegistryRefused | None = None
        """The first 403 of credentials that have been given no schema yet."""
        self._is_registry: bool | None = None
        """Whether the server has proved to be a registry; None before it was asked."""

    def find(self, schema_id: int) -> RegisteredSchema | UnusableSchema | None:
        """Return the schema with that id and the schemas that it refers to; None if there is none.

        No request is made for an id that no registry can have. Raises `RegistryUnavailable` when the registry does not
        answer within `patience_seconds`, and `RegistryRefused` when it rejects the credentials, or the server is no
        schema registry.
        """
        if not 0 <= schema_id <= MAX_SCHEMA_ID:
            return None
        with self.connected():
            answer = self._get(f"/schemas/ids/{schema_id}")
            if answer.kind is AnswerKind.NOT_FOUND:
                return None
            if answer.kind is AnswerKind.STRANGE:
                return UnusableSchema(f"cannot be read: the registry answers {answer.status}")
            try:
                return RegisteredSchema(answer.schema_type, answer.schema, tuple(self._texts_below(answer)))
            except ValueError as error:
                return UnusableSchema(str(error))

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Keep the connection between calls of `find` inside of this context.

        Raises `RegistryRefused` at its end if the registry has refused a schema and has never returned one.
        """
        is_outermost = not self._is_connected
        self._is_connected = True
        try:
            yield
            if is_outermost and self._forbidden is not None and not self._has_given_schemas:
                raise self._forbidden
        finally:
            if is_outermost:
                self._is_connected = False
                if self._open is not None:
                    self._open.close()
                    self._open = None

    # --- references ---------------------------------------------------------------------------------------------------

    def _texts_below(self, root: RegistryAnswer) -> list[str]:
        """Return the texts of the schemas that a schema refers to, each once and after the schemas on which it depends.

        Raises `ValueError` with a fault of them that continues "the schema …". The walk keeps its own stack: a chain of
        references may be longer than Python's.
        """
        texts: list[str] = []
        characters = len(root.schema)
        done: set[str] = set()
        above: dict[str, None] = {}  # the paths from the root down
        stack: list[tuple[str, str, Iterator[Reference]]] = [("", "", iter(read_references(root)))]
        while stack:
            path, text, rest = stack[-1]
            reference = next(rest, None)
            if reference is None:
                stack.pop()
                if stack:
                    del above[path]
                    done.add(path)
                    texts.append(text)
                continue
            if reference.path in above:
                raise ValueError(f"refers to {reference}, which refers to itself")
            if reference.path in done:
                continue
            if len(done) + len(above) == MAX_REFERENCES:
                raise ValueError(f"refers to more than {MAX_REFERENCES:,} schemas")
            found = self._referenced(reference, root.schema_type)
            characters += len(found.schema)
            if characters > MAX_CHARACTERS:
                raise ValueError(f"and the schemas that it refers to have more than {MAX_CHARACTERS:,} characters")
            above[reference.path] = None
            stack.append((reference.path, found.schema, iter(read_references(found))))
        return texts

    def _referenced(self, reference: Reference, schema_type: str) -> RegistryAnswer:
        answer = self._get(reference.path)
        if answer.kind is AnswerKind.NOT_FOUND:
            raise ValueError(f"refers to {reference}, which the registry does not have")
        if answer.kind is AnswerKind.STRANGE:
            raise ValueError(f"refers to {reference}, which cannot be read: the registry answers {answer.status}")
        if answer.schema_type != schema_type:
            raise ValueError(f"refers to {reference}, which is {answer.schema_type}, not {schema_type}")
        return answer

    # --- requests -----------------------------------------------------------------------------------------------------

    def _get(self, path: str) -> RegistryAnswer:
        """Return the answer about one schema. Raise an error if the answer concerns the registry."""
        if path not in self._answers:
            self._answers[path] = self._about_one_schema(path, self._request_patiently(path))
        return self._answers[path]

    def _about_one_schema(self, path: str, answer: RegistryAnswer) -> RegistryAnswer:
        if answer.kind is AnswerKind.SCHEMA:
            self._has_given_schemas = self._is_registry = True
        elif answer.kind is AnswerKind.NOT_FOUND:
            self._is_registry = True
        elif answer.code == httpx.codes.FORBIDDEN:
            self._forbidden = self._forbidden or self._refused(path, answer)
        elif not self._has_proved():
            raise self._refused(path, answer)
        elif answer.code == httpx.codes.NOT_FOUND:
            return RegistryAnswer(AnswerKind.NOT_FOUND, answer.code, answer.status)
        return answer

    def _has_proved(self) -> bool:
        """Return whether the server has proved to be a registry."""
        if self._is_registry is None:
            self._is_registry = any(self._request_patiently(path).is_list for path in _PROBES)
        return self._is_registry

    def _refused(self, path: str, answer: RegistryAnswer) -> RegistryRefused:
        return RegistryRefused(self._endpoint.url + path, answer.status, self._endpoint.remedy)

    def _request_patiently(self, path: str) -> RegistryAnswer:
        attempts = Retrying(
            stop=stop_after_delay(self._patience_seconds),
            wait=wait_exponential_jitter(multiplier=0.2, max=5.0),
            retry=retry_if_exception_type(RegistryUnavailable),
            reraise=True,
        )
        answer: RegistryAnswer = attempts(self._request, path)
        return answer

    def _client(self) -> httpx.Client:
        login, password = self._endpoint.login, self._endpoint.password or ""
        return httpx.Client(
            auth=(login, password) if login else None,
            headers={"Accept": _ACCEPT, **self._endpoint.headers},
            verify=self._tls,
            timeout=_TIMEOUT,
        )

    def _request(self, path: str) -> RegistryAnswer:
        try:
            if self._open is None:
                self._open = self._client()
            answer = read_answer(self._open, self._endpoint.url + path)
        except httpx.TransportError as error:
            raise self._unavailable(str(error) or type(error).__name__) from error
        # The resolver raises UnicodeError for `http://a..b`, and OverflowError for the port 99999.
        except (httpx.InvalidURL, ValueError, OverflowError) as error:
            reason = f"its address cannot be used: {error}"
            raise RegistryRefused(self._endpoint.url, reason, self._endpoint.remedy) from error
        if answer.code == httpx.codes.TOO_MANY_REQUESTS or httpx.codes.is_server_error(answer.code):
            raise self._unavailable(answer.status)
        if answer.code in (httpx.codes.UNAUTHORIZED, httpx.codes.PROXY_AUTHENTICATION_REQUIRED):
            raise self._refused(path, answer)
        return answer

    def _unavailable(self, reason: str) -> RegistryUnavailable:
        return RegistryUnavailable(self._endpoint.url, reason, self._endpoint.remedy)
