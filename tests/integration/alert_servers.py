"""A mail server with TLS and login, and an HTTP server that answers as Slack, PagerDuty and a dead man's switch do."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session
from secured import Certificates, as_environment

from devstack.servers import free_ports

_USER, _PASSWORD = "waybill", "s3cret"


@dataclass
class AlertServers:
    """The servers, and what they received."""

    environment: dict[str, str]
    """Connections to them."""
    ca_file: str = ""
    """The CA that signed the mail server's certificate."""
    mails: list[EmailMessage] = field(default_factory=list)
    posts: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    """Path, headers and body of each request."""
    pings: int = 0
    is_refusing: bool = False
    """Whether the HTTP server answers each request with an error."""
    answers: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    """Other answers, by path: status, headers and body. The request counts as received."""

    def bodies(self, path: str) -> list[dict[str, Any]]:
        """Return the bodies that were sent to a path, in order."""
        return [body for found, _, body in self.posts if found == path]


class _Mailbox:
    def __init__(self, servers: AlertServers) -> None:
        self._servers = servers

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802 - its name
        content = envelope.content
        assert isinstance(content, bytes)
        parsed = message_from_bytes(content, policy=policy.default)
        assert isinstance(parsed, EmailMessage)
        self._servers.mails.append(parsed)
        return "250 OK"


def _authenticate(server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any) -> AuthResult:
    expected = LoginPassword(_USER.encode(), _PASSWORD.encode())
    return AuthResult(success=data == expected, handled=False)


@contextmanager
def alert_servers(directory: Path) -> Iterator[AlertServers]:
    """Start the servers, and yield what they receive."""
    certificates = Certificates(directory / "alerts-ca")
    certificate, key, _ = certificates.issue("mail", ("localhost", "127.0.0.1"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    servers = AlertServers({})
    [mail_port] = free_ports(1)
    mail = Controller(
        _Mailbox(servers),
        hostname="127.0.0.1",
        port=mail_port,
        tls_context=context,
        require_starttls=True,
        auth_required=True,
        authenticator=_authenticate,
    )

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if servers.is_refusing:
                self._answer(503, {}, b"down")
                return
            servers.posts.append((self.path, dict(self.headers), body))
            if self.path in servers.answers:
                self._answer(*servers.answers[self.path])
                return
            self._answer(200, {}, b'{"ok": true}' if self.path == "/api/chat.postMessage" else b"ok")

        def do_GET(self) -> None:
            servers.pings += 1
            self._answer(*servers.answers.get(self.path, (200, {}, b"ok")))

        def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            media_type = "application/json" if body.startswith(b"{") else "text/plain"
            for name, value in {"Content-Type": media_type, **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Leave the test's output alone."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    mail.start()
    base = f"http://127.0.0.1:{http.server_address[1]}"
    extra = {"disable_ssl": True, "from_email": "waybill@example.com", "ca_file": str(certificates.ca)}
    smtp = {"conn_type": "smtp", "host": "localhost", "port": mail_port, "login": _USER, "extra": extra}
    servers.ca_file = str(certificates.ca)
    servers.environment = as_environment(
        mail={**smtp, "password": _PASSWORD},
        mail_wrong_password={**smtp, "password": "wrong"},
        slack_hook={"conn_type": "slackwebhook", "host": f"{base}/services", "password": "T0/B0/x"},
        slack_api={"conn_type": "slack", "password": "xoxb-1", "extra": {"base_url": f"{base}/api/"}},
        hook={"conn_type": "http", "host": f"{base}/hook", "password": "token"},
        pagerduty={"conn_type": "http", "host": f"{base}/v2/enqueue", "password": "routing-key"},
        dead_man={"conn_type": "http", "host": f"{base}/ping"},
    )
    try:
        yield servers
    finally:
        mail.stop()
        http.shutdown()
        http.server_close()
        thread.join()
