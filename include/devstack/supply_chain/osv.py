"""All advisories that OSV (https://osv.dev) knows of some packages.

OSV collects those of the Python Packaging Advisory Database, of GitHub and of others, for all indexes, in one format.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_exponential

from waybill.base.errors import StackError

SOURCE = "https://api.osv.dev"
_TIMEOUT_SECONDS = 20.0
_PARALLEL = 8
_MAX_PAGES = 100


class OsvUnavailable(StackError):
    """OSV does not answer, or answers something else than advisories."""


def query(packages: Iterable[tuple[str, str]], transport: httpx.BaseTransport | None = None) -> list[dict[str, Any]]:
    """Return the OSV documents of packages, `(ecosystem, name)`, in all versions, each document once.

    An advisory that was withdrawn is left out. Raises `OsvUnavailable`: a part of the answers is no answer.
    """
    with httpx.Client(base_url=SOURCE, timeout=_TIMEOUT_SECONDS, transport=transport) as client:
        # One alone first: without network this fails at once, and not in each thread.
        first, *others = packages
        found = _query_one(client, first)
        with ThreadPoolExecutor(_PARALLEL) as threads:
            for documents in threads.map(lambda each: _query_one(client, each), others):
                found += documents
    return list({str(each["id"]): each for each in found if "withdrawn" not in each}.values())


def _query_one(client: httpx.Client, package: tuple[str, str]) -> list[dict[str, Any]]:
    ecosystem, name = package
    body: dict[str, Any] = {"package": {"ecosystem": ecosystem, "name": name}}
    found: list[dict[str, Any]] = []
    for _ in range(_MAX_PAGES):
        answer = _post(client, body)
        found += answer.get("vulns", [])
        if not answer.get("next_page_token"):
            return found
        body["page_token"] = answer["next_page_token"]
    raise OsvUnavailable(f"{SOURCE} has more than {_MAX_PAGES} pages of advisories of {name}")


@retry(
    retry=retry_if_exception_type(httpx.TimeoutException),
    stop=stop_after_attempt(3),
    wait=wait_exponential(max=4),
    reraise=True,
)
def _answer(client: httpx.Client, body: dict[str, Any]) -> httpx.Response:
    return client.post("/v1/query", json=body)


def _post(client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    try:
        response = _answer(client, body)
    except httpx.HTTPError as error:
        raise OsvUnavailable(f"{SOURCE} does not answer: {error!r}") from error
    if response.status_code != 200:
        raise OsvUnavailable(f"{SOURCE} answers {response.status_code} for {body['package']['name']}")
    try:
        answer = response.json()
    except ValueError as error:
        raise OsvUnavailable(f"{SOURCE} answers something else than JSON for {body['package']['name']}") from error
    if not isinstance(answer, dict) or not isinstance(answer.get("vulns", []), list):
        raise OsvUnavailable(f"{SOURCE} answers something else than advisories for {body['package']['name']}")
    return answer
