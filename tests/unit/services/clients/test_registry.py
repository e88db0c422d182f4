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

from waybill.base.errors import ConfigError, RegistryRefused, RegistryUnavailable
from waybill.config.connections import RegistryEndpoint, find_connection
from waybill.services.clients.registry import RegisteredSchema, SchemaRegistry, UnusableSchema

Answer = tuple[int, object]


class Script:
    """Answers by path; the last of several answers repeats. Records the requests."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Answer]] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.headers: dict[str, str] = {}
        script = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                script.requests.append((self.path, dict(self.headers)))
                answers = script.answers.get(self.path, [(404, {"error_code": 40403, "message": "Schema not found"})])
                status, document = answers.pop(0) if len(answers) > 1 else answers[0]
                body = document if isinstance(document, bytes) else json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                for name, value in script.headers.items():
                    self.send_header(name, value)
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
    assert client.find(7) == client.find(7) == RegisteredSchema("AVRO", '"long"')
    assert client.find(8) is None
    assert client.find(8) is None
    assert [path for path, _ in script.requests] == ["/schemas/ids/7", "/schemas/ids/8"]


def refers(*subjects: str) -> list[dict[str, object]]:
    return [{"name": subject, "subject": subject, "version": 3} for subject in subjects]


def at(subject: str) -> str:
    return f"/subjects/{subject}/versions/3?deleted=true"


def test_find_returns_the_texts_of_references_each_after_those_that_it_needs(script: Script) -> None:
    script.answers["/schemas/ids/1"] = [
        (200, {"schema": "a", "schemaType": "AVRO", "references": refers("b/b", "c", "d")})
    ]
    script.answers[at("b%2Fb")] = [(200, {"schema": "b", "references": refers("c")})]
    script.answers[at("c")] = [(200, {"schema": "c", "references": None})]
    script.answers[at("d")] = [(200, {"schema": "d", "references": refers("c", "b/b")})]
    assert registry(script).find(1) == RegisteredSchema("AVRO", "a", ("c", "b", "d"))
    assert len(script.requests) == 4


@pytest.mark.parametrize("trouble", [500, 503, 429, 502])
def test_find_repeats_the_request_after_a_temporary_error(script: Script, trouble: int) -> None:
    script.answers["/schemas/ids/7"] = [(trouble, b""), (200, {"schema": "s"})]
    assert registry(script).find(7) == RegisteredSchema("AVRO", "s")


def test_find_raises_registry_unavailable_after_lasting_errors(script: Script) -> None:
    script.answers["/schemas/ids/7"] = [(503, b"")]
    with pytest.raises(RegistryUnavailable, match=r"does not answer \(503 Service Unavailable\).*'registry'") as raised:
        registry(script, patience_seconds=0.0).find(7)
    assert raised.value.retriable
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_find_raises_registry_unavailable_without_a_server(script: Script) -> None:
    with pytest.raises(RegistryUnavailable, match=r"Connection refused|No route"):
        registry(script, patience_seconds=0.0, host="http://127.0.0.1:1").find(7)


NOT_THE_REGISTRY: list[tuple[int, object, str]] = [
    (401, {"error_code": 401, "message": "Unauthorized"}, "401 Unauthorized"),
    (407, b"", "407 Proxy Authentication Required"),
    (403, b"", "403 Forbidden"),
]
STRANGE: list[tuple[int, object, str]] = [
    (302, b"", "302 Found"),
    (400, {"error_code": 400, "message": "HTTP 400 Bad Request"}, "400 Bad Request"),
    (422, {"error_code": 42202}, "422 Unprocessable Entity"),
    (200, b"<html>sign in</html>", "200 OK, and the body is no schema"),
    (200, b"", "200 OK, and the body is no schema"),
    (200, b"[" * 100_000, "200 OK, and the body is no schema"),
    (200, {}, "200 OK, and the body is no schema"),
    (200, {"schema": 7}, "200 OK, and the body is no schema"),
    (200, {"schema": None}, "200 OK, and the body is no schema"),
    (200, {"schema": "s", "schemaType": 7}, "200 OK, and the body is no schema"),
    (200, ["schema"], "200 OK, and a list"),
    (200, b'"' + b"x" * (9 << 20) + b'"', "200 OK, and the body is larger than 8,388,608 bytes"),
    (202, b"", "202 Accepted, and the body is no schema"),
]
NOT_FOUND: list[tuple[int, object]] = [
    (404, {"error_code": 0, "message": "HTTP 404 Not Found"}),
    (404, {"error_code": 404, "message": "HTTP 404 Not Found"}),
    (404, {"error_code": "40403"}),
    (404, {"status": 404, "error": "Not Found"}),
    (404, b"<html>no such page</html>"),
    (404, b""),
]


@pytest.mark.parametrize(
    ("status", "document", "what"),
    [*NOT_THE_REGISTRY, *STRANGE, *((status, document, "404 Not Found") for status, document in NOT_FOUND)],
)
def test_find_raises_registry_refused_for_an_answer_that_no_registry_gives(
    script: Script, status: int, document: object, what: str
) -> None:
    script.answers["/schemas/ids/7"] = [(status, document)]
    script.answers["/schemas/types"] = script.answers["/subjects"] = [(404, {"error_code": 404})]
    with pytest.raises(RegistryRefused) as raised:
        registry(script).find(7)
    assert not raised.value.retriable
    assert f"({what})" in str(raised.value)
    assert "connection 'registry' (AIRFLOW_CONN_REGISTRY)" in str(raised.value)


@pytest.mark.parametrize(("status", "document", "what"), [*STRANGE, (403, b"", "403 Forbidden")])
def test_a_registry_that_has_given_a_schema_is_not_refused_for_another_id(
    script: Script, status: int, document: object, what: str
) -> None:
    script.answers["/schemas/ids/1"] = [(200, {"schema": "s"})]
    script.answers["/schemas/ids/7"] = [(status, document)]
    client = registry(script)
    assert client.find(1) == RegisteredSchema("AVRO", "s")
    assert client.find(7) == UnusableSchema(f"cannot be read: the registry answers {what}")
    assert [path for path, _ in script.requests] == ["/schemas/ids/1", "/schemas/ids/7"]


@pytest.mark.parametrize("probe", ["/schemas/types", "/subjects"])
def test_a_server_that_answers_a_list_of_types_or_subjects_is_a_registry(script: Script, probe: str) -> None:
    script.answers["/schemas/ids/7"] = [(200, b"<html>")]
    script.answers["/schemas/types"] = [(404, b"")]
    script.answers["/subjects"] = [(404, b"")]
    script.answers[probe] = [(200, [])]
    for number, (status, document) in enumerate(NOT_FOUND, 10):
        script.answers[f"/schemas/ids/{number}"] = [(status, document)]
    client = registry(script)
    assert isinstance(client.find(7), UnusableSchema)
    assert [client.find(number) for number in range(10, 10 + len(NOT_FOUND))] == [None] * len(NOT_FOUND)
    assert [path for path, _ in script.requests].count(probe) == 1


@pytest.mark.parametrize("status", [401, 407])
def test_rejected_credentials_are_refused_even_after_a_schema(script: Script, status: int) -> None:
    script.answers["/schemas/ids/1"] = [(200, {"schema": "s"})]
    script.answers["/schemas/ids/7"] = [(status, b"")]
    client = registry(script)
    client.find(1)
    with pytest.raises(RegistryRefused):
        client.find(7)


def test_not_found_with_status_200_is_not_found(script: Script) -> None:
    script.answers["/schemas/ids/7"] = [(200, {"error_code": 40403})]
    assert registry(script).find(7) is None


@pytest.mark.parametrize("schema_id", [-1, -(2**31), 2**31, 2**32 - 1, 2**64])
def test_no_request_is_made_for_an_id_that_no_registry_can_have(script: Script, schema_id: int) -> None:
    assert registry(script).find(schema_id) is None
    assert not script.requests


def test_the_target_of_a_redirect_is_named_without_credentials(script: Script) -> None:
    script.headers = {"Location": "https://user:secret@sso.example.com/login?token=secret"}
    script.answers["/schemas/ids/7"] = [(302, b"")]
    script.answers["/schemas/types"] = [(302, b"")]
    with pytest.raises(RegistryRefused) as raised:
        registry(script).find(7)
    assert "(302 Found, to https://sso.example.com/login)" in str(raised.value)


def test_a_body_that_cannot_be_decompressed_is_no_schema(script: Script) -> None:
    script.answers["/schemas/ids/1"] = [(200, {"schema": "s"})]
    client = registry(script)
    client.find(1)
    script.headers = {"Content-Encoding": "gzip"}
    script.answers["/schemas/ids/7"] = [(200, {"schema": "s"})]
    assert client.find(7) == UnusableSchema(
        "cannot be read: the registry answers 200 OK, and the body cannot be decompressed"
    )


@pytest.mark.parametrize("host", ["http://[", "http://registry:99999", "http://a..b"])
def test_an_address_that_cannot_be_used_is_refused(script: Script, host: str) -> None:
    endpoint = RegistryEndpoint(conn_id="registry", url=host)
    with pytest.raises((RegistryRefused, RegistryUnavailable), match="registry"):
        SchemaRegistry(endpoint, patience_seconds=0.0).find(7)


@pytest.mark.parametrize(
    ("references", "fault"),
    [
        (refers("gone"), "refers to gone version 3, which the registry does not have"),
        (
            refers("page"),
            "refers to page version 3, which cannot be read: the registry answers 200 OK, and the body is",
        ),
        (refers("proto"), "refers to proto version 3, which is PROTOBUF, not AVRO"),
        (refers("circle"), "refers to circle version 3, which refers to itself"),
        (refers("longer"), "refers to longer version 3, which refers to itself"),
        ({"subject": "a"}, "has references that are not a list"),
        ("a", "has references that are not a list"),
        (["a"], "has a reference without subject and version"),
        ([None], "has a reference without subject and version"),
        ([{"subject": "a"}], "has a reference without subject and version"),
        ([{"subject": "a", "version": None}], "has a reference without subject and version"),
        ([{"subject": "a", "version": "latest"}], "has a reference without subject and version"),
        ([{"subject": "a", "version": -1}], "has a reference without subject and version"),
        ([{"subject": "a", "version": True}], "has a reference without subject and version"),
        ([{"subject": "", "version": 1}], "refers to an empty subject, which no registry can have"),
        ([{"subject": "\ud800", "version": 1}], "refers to \\ud800, which no registry can have"),
        (refers("ä" * 1_001), f"refers to {'ä' * 200}…, which no registry can have"),
        (refers("a") * 1_001, "refers to more than 1,000 schemas"),
    ],
)
def test_references_that_cannot_be_read_make_the_schema_unusable(
    script: Script, references: object, fault: str
) -> None:
    script.answers["/schemas/ids/1"] = [(200, {"schema": "a", "references": references})]
    script.answers[at("page")] = [(200, b"<html>")]
    script.answers[at("proto")] = [(200, {"schema": "p", "schemaType": "PROTOBUF"})]
    script.answers[at("circle")] = [(200, {"schema": "c", "references": refers("circle")})]
    script.answers[at("longer")] = [(200, {"schema": "l", "references": refers("way round")})]
    script.answers[at("way%20round")] = [(200, {"schema": "w", "references": refers("longer")})]
    found = registry(script).find(1)
    assert isinstance(found, UnusableSchema)
    assert found.reason.startswith(fault)


def test_references_that_double_at_each_level_are_requested_once(script: Script) -> None:
    script.answers["/schemas/ids/1"] = [(200, {"schema": "s", "references": refers("l0", "r0")})]
    for level in range(40):
        below = refers(f"l{level + 1}", f"r{level + 1}") if level < 39 else []
        for side in "lr":
            script.answers[at(f"{side}{level}")] = [(200, {"schema": f"{side}{level}", "references": below})]
    found = registry(script).find(1)
    assert isinstance(found, RegisteredSchema)
    assert len(found.referenced) == 80
    assert len(script.requests) == 81


def test_a_long_chain_of_references_is_limited(script: Script) -> None:
    script.answers["/schemas/ids/1"] = [(200, {"schema": "s", "references": refers("n0")})]
    for number in range(1_001):
        script.answers[at(f"n{number}")] = [(200, {"schema": "s", "references": refers(f"n{number + 1}")})]
    assert registry(script).find(1) == UnusableSchema("refers to more than 1,000 schemas")


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
