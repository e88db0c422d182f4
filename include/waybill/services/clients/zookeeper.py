"""kazoo's client with the connection's TLS and ACLs, and one error message with the reason if no session starts.

kazoo itself repeats every failed connection, logs the reasons, and reports only a timeout. Here the handler, which
opens kazoo's connections, remembers the last failure, and an untrusted server certificate ends the attempts at once.
"""

from __future__ import annotations

import logging
import socket
import ssl
import time
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.retry import KazooRetry
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from waybill.base.errors import ConfigError, CoordinationUnavailable
from waybill.config.connections import Access, Tls, ZooKeeperEndpoint

_POLL_SECONDS = 0.02

_ACLS: dict[Access, list[ACL]] = {
    Access.OPEN: OPEN_ACL_UNSAFE,
    Access.CREATOR: CREATOR_ALL_ACL,
    Access.CREATOR_AND_READERS: [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE],
}


class ZooKeeperClient(KazooClient):  # type: ignore[misc]
    """A client for one session. Every node that it creates, parents and locks included, has the endpoint's ACL."""

    def __init__(self, endpoint: ZooKeeperEndpoint, session_timeout_seconds: float) -> None:
        """Create the client, not connected yet. Raises `ConfigError` when a TLS file of the endpoint cannot be used."""
        self._endpoint = endpoint
        self._timeout = session_timeout_seconds
        self._handler = _ConnectionHandler(endpoint.tls)
        super().__init__(
            hosts=endpoint.hosts,
            timeout=session_timeout_seconds,
            handler=self._handler,
            # Short: a lane that cannot commit within the session timeout has lost its locks and must end anyway.
            connection_retry=KazooRetry(max_tries=-1, max_delay=1.0, deadline=session_timeout_seconds),
            command_retry=KazooRetry(
                max_tries=3, delay=0.1, max_delay=1.0, deadline=session_timeout_seconds, ignore_expire=False
            ),
            auth_data=[("digest", f"{endpoint.username}:{endpoint.password}")] if endpoint.username else None,
            default_acl=_ACLS[endpoint.access],
        )
        if endpoint.username:
            # kazoo logs every request at the level DEBUG, and one of them contains the password.
            self.logger.setLevel(max(self.logger.getEffectiveLevel(), logging.INFO))

    def connect(self) -> None:
        """Start the session.

        Raises `CoordinationUnavailable` when none starts within the session timeout, `ConfigError` at once when the
        server's certificate is not trusted.
        """
        live, deadline = self.start_async(), time.monotonic() + self._timeout
        while not live.wait(_POLL_SECONDS) and not self._handler.refusal and time.monotonic() < deadline:
            pass
        if self.connected:
            return
        self.stop()
        self.close()
        where, remedy = f"ZooKeeper at {self._endpoint.where}", self._endpoint.remedy
        if self._handler.refusal:
            raise ConfigError(f"{where}: {self._handler.refusal}. Check ca, the host's name and use_ssl of {remedy}")
        raise CoordinationUnavailable(
            f"{where} started no session within {self._timeout:g} s ({self._handler.last_failure()}): nothing can "
            f"be committed. Check that it runs, and that use_ssl of {remedy} matches its port"
        )


class _ConnectionHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler, which opens connections with Waybill's TLS and remembers why one failed."""

    def __init__(self, tls: Tls | None) -> None:
        super().__init__()
        self._context = None if tls is None else tls.context()
        self._failure: str | None = None
        self.refusal: str | None = None
        """Why another attempt cannot help; None if it can."""

    def last_failure(self) -> str:
        """Return the last failure, for messages."""
        return self._failure or "its name does not resolve"

    def create_connection(self, *_: Any, **options: Any) -> socket.socket:
        """Connect to `options["address"]`, an IP address and port; `options["hostname"]` is the host's name."""
        self._failure = f"no answer to a connection to {options['hostname']}:{options['address'][1]}"
        try:
            connection = socket.create_connection(options["address"], options["timeout"])
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self._context is not None:
                connection = _wrap(self._context, connection, options["hostname"])
        except ssl.SSLCertVerificationError as error:
            self.refusal = f"its certificate is not trusted: {error.verify_message}"
            raise AuthFailedError(self.refusal) from None  # this class ends kazoo's attempts
        except OSError as error:
            reason = error.reason if isinstance(error, ssl.SSLError) and error.reason else error
            what = "the TLS handshake failed" if isinstance(error, ssl.SSLError) else "no connection"
            self._failure = f"{what}: {reason}"
            raise
        self._failure = "it accepts the connection and starts no session"
        return connection

    def select(self, readable: list[Any], *rest: Any) -> Any:
        """Return sockets that are ready, TLS sockets with decrypted data in their buffers included.

        A TLS record may hold the end of one response and the whole next one, which the selector cannot see.
        """
        pending = [each for each in readable if isinstance(each, ssl.SSLSocket) and each.pending()]
        if pending:
            # Do not wait in select: requests must be sent although more responses arrive.
            return super().select(readable, *rest[:2], 0)[0] + pending, [], []
        return super().select(readable, *rest)


def _wrap(context: ssl.SSLContext, connection: socket.socket, hostname: str) -> ssl.SSLSocket:
    try:
        return context.wrap_socket(connection, server_hostname=hostname)
    except BaseException:
        connection.close()
        raise
