"""Schemas of a schema registry, by id: Confluent's REST API, which Karapace, Apicurio and Redpanda serve too.

A schema id never changes its meaning, so a client keeps every answer for its lifetime. It only reads.
https://docs.confluent.io/platform/current/schema-registry/develop/api.html

This is not confluent-kafka's `SchemaRegistryClient`: that one sends no headers of the user (a token, say), retries by
count and not for a time, does not keep "not found", puts the body of an answer into its errors, trusts certifi's CAs
instead of the system's, and adds six packages to every Spark executor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential_jitter

from waybill.connections import RegistryEndpoint
from waybill.errors import RegistryRefused, RegistryUnavailable

__all__ = ["RegisteredSchema", "SchemaRegistry"]

PATIENCE_SECONDS = 60.0
"""How long requests to a registry that does not answer are repeated before the task fails."""

_TIMEOUT = httpx.Timeout(20.0, connect=5.0)
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_NOT_FOUND = range(40400, 40500)
"""Confluent's error codes for a missing subject, version or schema. A plain 404 can come from any web server."""


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema as it is registered."""

    kind: str
    """`AVRO`, `PROTOBUF` or `JSON`."""
    text: str
    references: tuple[RegisteredSchema | str, ...]
    """The schemas that it references; for a missing one, its subject and version as text."""


class SchemaRegistry:
    """A client of one registry. Only one thread may use it."""

    def __init__(self, endpoint: RegistryEndpoint, patience_seconds: float | None = None) -> None:
        """Create the client, without a request. `patience_seconds`: default `PATIENCE_SECONDS`.

        Raises `ConfigError` for TLS files that cannot be used.
        """
        self._endpoint = endpoint
        self._patience_seconds = PATIENCE_SECONDS if patience_seconds is None else patience_seconds
        self._tls = endpoint.tls.context() if endpoint.tls else True
        self._answers: dict[str, Any] = {}

    def find(self, schema_id: int) -> RegisteredSchema | None:
        """Return the schema with that id and the schemas that it references; None if there is none.

        Raises `RegistryUnavailable` when the registry does not answer within `patience_seconds`, and `RegistryRefused`
        when it rejects the credentials, or the server is no schema registry.
        """
        if not 0 <= schema_id <= _LAST_ID:
            return None  # a registry answers such an id with any error, which would look like one of the whole registry
        document = self._get(f"/schemas/ids/{schema_id}")
        return None if document is None else self._with_references(document, ())

    def _with_references(self, document: dict[str, Any], above: tuple[str, ...]) -> RegisteredSchema:
        references = []
        for reference in document.get("references") or ():
            path = f"/subjects/{quote(str(reference['subject']), safe='')}/versions/{int(reference['version'])}"
            # The schema still references a version that was deleted since.
            found = None if path in above else self._get(f"{path}?deleted=true")
            name = f"{reference['subject']} version {reference['version']}"
            references.append(name if found is None else self._with_references(found, (*above, path)))
        return RegisteredSchema(document.get("schemaType") or "AVRO", str(document["schema"]), tuple(references))

    def _get(self, path: str) -> dict[str, Any] | None:
        """Return the JSON object at a path; None if the registry answers that it does not exist."""
        if path not in self._answers:
            attempts = Retrying(
                stop=stop_after_delay(self._patience_seconds),
                wait=wait_exponential_jitter(multiplier=0.2, max=5.0),
                retry=retry_if_exception_type(RegistryUnavailable),
                reraise=True,
            )
            self._answers[path] = attempts(self._request, path)
        answer: dict[str, Any] | None = self._answers[path]
        return answer

    def _client(self) -> httpx.Client:
        login, password = self._endpoint.login, self._endpoint.password or ""
        return httpx.Client(
            auth=(login, password) if login else None,
            headers={"Accept": _ACCEPT, **self._endpoint.headers},
            verify=self._tls,
            timeout=_TIMEOUT,
        )

    def _request(self, path: str) -> dict[str, Any] | None:
        try:
            # A task asks once for each schema, so it keeps no connection open.
            with self._client() as client:
                answer = client.get(self._endpoint.url + path)
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            raise RegistryUnavailable(self._endpoint.url, reason, self._endpoint.remedy) from error
        status = f"{answer.status_code} {answer.reason_phrase}".strip()
        if answer.status_code == httpx.codes.TOO_MANY_REQUESTS or answer.is_server_error:
            raise RegistryUnavailable(self._endpoint.url, status, self._endpoint.remedy)
        document = _json_object(answer)
        if answer.status_code == httpx.codes.NOT_FOUND and document.get("error_code") in _NOT_FOUND:
            return None
        if answer.is_success and isinstance(document.get("schema"), str):
            return document
        reason = status if not answer.is_success else f"{status}, and the body is no schema"
        raise RegistryRefused(self._endpoint.url + path, reason, self._endpoint.remedy)


_LAST_ID = 2**31 - 1
"""Registries give ids as Java's `int`. A message with a greater one was not written with a schema of the registry."""


def _json_object(answer: httpx.Response) -> dict[str, Any]:
    try:
        document = answer.json()
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
