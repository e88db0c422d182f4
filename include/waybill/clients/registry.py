"""Schemas out of a schema registry, by id: Confluent's REST API, which others (Karapace, Apicurio, Redpanda) speak too.

A schema id never changes its meaning, so what was found is kept for as long as the client lives. Only reads.
https://docs.confluent.io/platform/current/schema-registry/develop/api.html
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
"""How long a registry that does not answer is asked again, before the task fails."""

_TIMEOUT = httpx.Timeout(20.0, connect=5.0)
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_NOT_FOUND = range(40400, 40500)
"""Confluent's error codes for a subject, a version, a schema that there is not. Any web server answers a plain 404."""


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema as it was registered."""

    kind: str
    """`AVRO`, `PROTOBUF` or `JSON`."""
    text: str
    references: tuple[RegisteredSchema | str, ...]
    """The schemas that it refers to; for one that is not there, how it is called."""


class SchemaRegistry:
    """Asks one registry. Not for several threads."""

    def __init__(self, endpoint: RegistryEndpoint, patience_seconds: float | None = None) -> None:
        """`patience_seconds`: default `PATIENCE_SECONDS`. Asks nothing yet.

        Raises `ConfigError` for files of TLS that cannot be used.
        """
        self._endpoint = endpoint
        self._patience_seconds = PATIENCE_SECONDS if patience_seconds is None else patience_seconds
        self._tls = endpoint.tls.context() if endpoint.tls else True
        self._found: dict[str, Any] = {}

    def find(self, schema_id: int) -> RegisteredSchema | None:
        """The schema of that id, with those that it refers to; None if there is none.

        Raises `RegistryUnavailable` when the registry does not answer for as long as its patience lasts, and
        `RegistryRefused` when it does not let us in, or is no schema registry.
        """
        document = self._get(f"/schemas/ids/{schema_id}")
        return None if document is None else self._schema(document, ())

    def _schema(self, document: dict[str, Any], above: tuple[str, ...]) -> RegisteredSchema:
        references = []
        for reference in document.get("references") or ():
            path = f"/subjects/{quote(str(reference['subject']), safe='')}/versions/{int(reference['version'])}"
            # A version that was deleted since is still what the schema means.
            found = None if path in above else self._get(f"{path}?deleted=true")
            name = f"{reference['subject']} version {reference['version']}"
            references.append(name if found is None else self._schema(found, (*above, path)))
        return RegisteredSchema(document.get("schemaType") or "AVRO", str(document["schema"]), tuple(references))

    def _get(self, path: str) -> dict[str, Any] | None:
        """The JSON object at a path; None where the registry says that there is no such thing."""
        if path not in self._found:
            attempts = Retrying(
                stop=stop_after_delay(self._patience_seconds),
                wait=wait_exponential_jitter(multiplier=0.2, max=5.0),
                retry=retry_if_exception_type(RegistryUnavailable),
                reraise=True,
            )
            self._found[path] = attempts(self._ask, path)
        found: dict[str, Any] | None = self._found[path]
        return found

    def _client(self) -> httpx.Client:
        login, password = self._endpoint.login, self._endpoint.password or ""
        return httpx.Client(
            auth=(login, password) if login else None,
            headers={"Accept": _ACCEPT, **self._endpoint.headers},
            verify=self._tls,
            timeout=_TIMEOUT,
        )

    def _ask(self, path: str) -> dict[str, Any] | None:
        try:
            # Asked once for each schema in the life of a task: no connection is kept.
            with self._client() as client:
                answer = client.get(self._endpoint.url + path)
        except httpx.TransportError as error:
            what = str(error) or type(error).__name__
            raise RegistryUnavailable(self._endpoint.url, what, self._endpoint.remedy) from error
        status = f"{answer.status_code} {answer.reason_phrase}".strip()
        if answer.status_code == httpx.codes.TOO_MANY_REQUESTS or answer.is_server_error:
            raise RegistryUnavailable(self._endpoint.url, status, self._endpoint.remedy)
        document = _json_object(answer)
        if answer.status_code == httpx.codes.NOT_FOUND and document.get("error_code") in _NOT_FOUND:
            return None
        if answer.is_success and isinstance(document.get("schema"), str):
            return document
        what = status if not answer.is_success else f"{status}, and what it sent is no schema"
        raise RegistryRefused(self._endpoint.url + path, what, self._endpoint.remedy)


def _json_object(answer: httpx.Response) -> dict[str, Any]:
    try:
        document = answer.json()
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
