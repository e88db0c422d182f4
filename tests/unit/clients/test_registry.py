"""How the client of a schema registry handles each answer. The registry here is scripted;
tests/integration/test_schema_registry.py uses a real one."""

from __future__ import annotations

import base64
import json
import pickle
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from waybill.clients.registry import RegisteredSchema, SchemaRegistry
from waybill.connections import RegistryEndpoint, find_connection
from waybill.errors import ConfigError, RegistryRefused, RegistryUnavailable

Answer = tuple[int, object]


class Script:
    """Answers by path; the last of several answers repeats. Records the requests."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Answer]] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        script = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                script.requests.append((self.path, dict(self.headers)))
                answers = script.answers.get(self.path, [(404, {"error_code": 40403, "message": "Schema not found"})])
                status, document = answers.pop(0) if len(answers) > 1 else answers[0]
                body = document if isinstance(document, bytes) else json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def script() -> Iterator[Script]:
    script = Script()
    thread = threading.Thread(target=script.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield script
    script.server.shutdown()
    thread.join()
    script.server.server_close()


def registry(script: Script, patience_seconds: float = 30.0, **keys: object) -> SchemaRegistry:
    value = json.dumps({"conn_type": "http", "host": script.url} | keys)
    return SchemaRegistry(
        RegistryEndpoint.of(find_connection("registry", {"AIRFLOW_CONN_REGISTRY": value})), patience_seconds
    )


def test_find_requests_each_schema_once(script: Script) -> None:
    script.answers["/schemas/ids/7"] = [(200, {"schema": '"long"'})]
    client = registry(script)
    assert client.find(7) == client.find(7) == RegisteredSchema("AVRO", '"long"', ())
    assert client.find(8) is None
    assert client.find(8) is None
    assert [path for path, _ in script.requests] == ["/schemas/ids/7", "/schemas/ids/8"]


def test_find_returns_a_schema_with_its_references(script: Script) -> None:
    def refers(*subjects: str) -> list[dict[str, object]]:
        return [{"name": subject, "subject": subject, "version": 3} for subject in subjects]

    script.answers["/schemas/ids/1"] = [
        (200, {"schema": "a", "schemaType": "AVRO", "references": refers("b/b", "gone")})
    ]
    script.answers["/subjects/b%2Fb/versions/3?deleted=true"] = [(200, {"schema": "b", "references": refers("c")})]
    script.answers["/subjects/c/versions/3?deleted=true"] = [(200, {"schema": "c", "references": refers("b/b")})]
    script.answers["/subjects/gone/versions/3?deleted=true"] = [(404, {"error_code": 40401})]
    below = RegisteredSchema("AVRO", "c", ("b/b version 3",))  # a circular reference is not followed
    assert registry(script).find(1) == RegisteredSchema(
        "AVRO", "a", (RegisteredSchema("AVRO", "b", (below,)), "gone version 3")
    )


@pytest.mark.parametrize("trouble", [500, 503, 429, 502])
def test_find_repeats_the_request_after_a_temporary_error(script: Script, trouble: int) -> None:
    script.answers["/schemas/ids/7"] = [(trouble, b""), (200, {"schema": "s"})]
    assert registry(script).find(7) == RegisteredSchema("AVRO", "s", ())


def test_find_raises_registry_unavailable_after_lasting_errors(script: Script) -> None:
    script.answers["/schemas/ids/7"] = [(503, b"")]
    with pytest.raises(RegistryUnavailable, match=r"does not answer \(503 Service Unavailable\).*'registry'") as raised:
        registry(script, patience_seconds=0.0).find(7)
    assert raised.value.retriable
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_find_raises_registry_unavailable_without_a_server(script: Script) -> None:
    with pytest.raises(RegistryUnavailable, match=r"Connection refused|No route"):
        registry(script, patience_seconds=0.0, host="http://127.0.0.1:1").find(7)


@pytest.mark.parametrize(
    ("status", "document", "what"),
    [
        (401, {"error_code": 401, "message": "Unauthorized"}, "401 Unauthorized"),
        (403, b"", "403 Forbidden"),
        (404, b"<html>no such page</html>", "404 Not Found"),
        (404, {"error_code": 404, "message": "HTTP 404 Not Found"}, "404 Not Found"),
        (302, b"", "302 Found"),
        (200, b"<html>sign in</html>", "200 OK, and the body is no schema"),
        (200, {"schema": 7}, "200 OK, and the body is no schema"),
        (200, ["schema"], "200 OK, and the body is no schema"),
    ],
)
def test_find_raises_registry_refused_for_an_answer_that_is_no_schema(
    script: Script, status: int, document: object, what: str
) -> None:
    script.answers["/schemas/ids/7"] = [(status, document)]
    with pytest.raises(RegistryRefused) as raised:
        registry(script).find(7)
    assert not raised.value.retriable
    assert f"({what})" in str(raised.value)
    assert "connection 'registry' (AIRFLOW_CONN_REGISTRY)" in str(raised.value)
    assert len(script.requests) == 1


def test_find_sends_credentials(script: Script) -> None:
    script.answers["/schemas/ids/7"] = [(200, {"schema": "s"})]
    registry(script, login="user", password="p:ss").find(7)
    registry(script, extra={"Authorization": "Bearer t0ken"}).find(7)
    basic = "Basic " + base64.b64encode(b"user:p:ss").decode()
    assert [headers["Authorization"] for _, headers in script.requests] == [basic, "Bearer t0ken"]


@pytest.mark.parametrize(
    ("value", "url"),
    [
        ({"host": "registry"}, "http://registry"),
        ({"host": "registry", "schema": "https", "port": 8081}, "https://registry:8081"),
        ({"host": "https://registry/api/v7/"}, "https://registry/api/v7"),
        ("http://user:secret@registry:8081/https", "https://registry:8081"),
    ],
)
def test_registry_endpoint_reads_the_address_as_airflow_does(value: object, url: str) -> None:
    text = value if isinstance(value, str) else json.dumps({"conn_type": "http"} | value)  # type: ignore[operator]
    endpoint = RegistryEndpoint.of(find_connection("registry", {"AIRFLOW_CONN_REGISTRY": text}))
    assert endpoint.url == url
    assert "secret" not in repr(endpoint)


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({}, "has no host"),
        ({"host": "ftp://registry"}, "make no http:// or https:// address"),
        ({"host": "https://user:secret@registry"}, "login and password have fields of their own"),
        ({"host": "r", "password": "secret"}, "it has a password and no login"),
        ({"host": "r", "extra": {"verify": "ca.pem"}}, "verify in its extra needs https"),
        ({"host": "https://r", "extra": {"proxies": {"https": "p"}}}, "proxies in its extra is not supported"),
        ({"host": "https://r", "extra": {"cert": ["a"]}}, "cert in its extra must be text"),
        ({"host": "https://r", "extra": {"verify": 7}}, "verify in its extra must be true or false"),
        (
            {"host": "https://r", "extra": {"X-Token": "a\nb"}},
            "X-Token in its extra is sent as a header",
        ),
        ({"host": "https://r", "extra": {"verify": "/nowhere.pem"}}, "the CA file '/nowhere.pem' cannot be used"),
        ({"host": "https://r", "extra": {"cert": ["/no.pem", "/k.pem"]}}, "the file '/no.pem' cannot be used"),
    ],
)
def test_registry_endpoint_refuses_invalid_connections(value: dict[str, object], fault: str) -> None:
    text = json.dumps({"conn_type": "http"} | value)
    with pytest.raises(ConfigError) as raised:
        SchemaRegistry(RegistryEndpoint.of(find_connection("registry", {"AIRFLOW_CONN_REGISTRY": text})))
    assert fault in str(raised.value)
    assert "secret" not in str(raised.value)
