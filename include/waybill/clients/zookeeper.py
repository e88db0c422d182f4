"""kazoo's client with our TLS and ACLs, that says in one line why no session began.

Kazoo goes on trying whatever went wrong, and tells its log; who waits for it learns that time is up. Here a handler,
which is where kazoo makes its connections, remembers what happened, and a server that is not to be trusted ends the
tries at once.
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

from waybill.connections import Access, Tls, ZooKeeperEndpoint
from waybill.errors import ConfigError, CoordinationUnavailable

__all__ = ["ZooKeeperClient"]

_POLL_SECONDS = 0.02

_ACLS: dict[Access, list[ACL]] = {
    Access.OPEN: OPEN_ACL_UNSAFE,
    Access.CREATOR: CREATOR_ALL_ACL,
    Access.CREATOR_AND_READERS: [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE],
}


class ZooKeeperClient(KazooClient):  # type: ignore[misc]
    """A client for one session. Every node that it makes, parents and locks included, has the endpoint's ACL."""

    def __init__(self, endpoint: ZooKeeperEndpoint, session_timeout_seconds: float) -> None:
        """Raises `ConfigError` when a file of the endpoint's TLS cannot be used."""
        self._endpoint = endpoint
        self._timeout = session_timeout_seconds
        self._dialer = _Dialer(endpoint.tls)
        super().__init__(
            hosts=endpoint.hosts,
            timeout=session_timeout_seconds,
            handler=self._dialer,
            # Short: a lane that cannot commit within a session's time has nothing to wait for.
            connection_retry=KazooRetry(max_tries=-1, max_delay=1.0, deadline=session_timeout_seconds),
            command_retry=KazooRetry(
                max_tries=3, delay=0.1, max_delay=1.0, deadline=session_timeout_seconds, ignore_expire=False
            ),
            auth_data=[("digest", f"{endpoint.username}:{endpoint.password}")] if endpoint.username else None,
            default_acl=_ACLS[endpoint.access],
        )
        if endpoint.username:
            # Kazoo logs every request at the level DEBUG, and the password is in one.
            self.logger.setLevel(max(self.logger.getEffectiveLevel(), logging.INFO))

    def connect(self) -> None:
        """Begin the session.

        Raises `CoordinationUnavailable` when none begins within the session's time-out, `ConfigError` at once when the
        server is not to be trusted.
        """
        live, deadline = self.start_async(), time.monotonic() + self._timeout
        while not live.wait(_POLL_SECONDS) and not self._dialer.refusal and time.monotonic() < deadline:
            pass
        if self.connected:
            return
        self.stop()
        self.close()
        where, remedy = f"ZooKeeper at {self._endpoint.where}", self._endpoint.remedy
        if self._dialer.refusal:
            raise ConfigError(f"{where}: {self._dialer.refusal}. Check ca, the host's name and use_ssl of {remedy}")
        raise CoordinationUnavailable(
            f"{where} began no session within {self._timeout:g} s ({self._dialer.what_happened()}): nothing can "
            f"be committed. Is it up, and is use_ssl of {remedy} what the port speaks?"
        )


class _Dialer(SequentialThreadingHandler):  # type: ignore[misc]
    """Kazoo's handler, with connections of our making."""

    def __init__(self, tls: Tls | None) -> None:
        super().__init__()
        self._context = None if tls is None else tls.context()
        self._failure: str | None = None
        self.refusal: str | None = None
        """Why trying again cannot help."""

    def what_happened(self) -> str:
        """For messages."""
        return self._failure or "its name does not resolve"

    def create_connection(self, *_: Any, **options: Any) -> socket.socket:
        """To `options["address"]`, a host's address and port; `hostname` is the name that the host was asked for by."""
        self._failure = f"no answer to a connection to {options['hostname']}:{options['address'][1]}"
        try:
            connection = socket.create_connection(options["address"], options["timeout"])
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self._context is not None:
                connection = _wrap(self._context, connection, options["hostname"])
        except ssl.SSLCertVerificationError as error:
            self.refusal = f"its certificate is not trusted: {error.verify_message}"
            raise AuthFailedError(self.refusal) from None  # what ends kazoo's tries
        except OSError as error:
            reason = error.reason if isinstance(error, ssl.SSLError) and error.reason else error
            what = "the TLS handshake failed" if isinstance(error, ssl.SSLError) else "no connection"
            self._failure = f"{what}: {reason}"
            raise
        self._failure = "it takes the connection and begins no session"
        return connection

    def select(self, readable: list[Any], *rest: Any) -> Any:
        """A TLS record may hold the end of one response and the whole next: of that one the selector knows nothing."""
        pending = [each for each in readable if isinstance(each, ssl.SSLSocket) and each.pending()]
        if pending:
            # What is to be sent must not wait for the responses to end.
            return super().select(readable, *rest[:2], 0)[0] + pending, [], []
        return super().select(readable, *rest)


def _wrap(context: ssl.SSLContext, connection: socket.socket, hostname: str) -> ssl.SSLSocket:
    try:
        return context.wrap_socket(connection, server_hostname=hostname)
    except BaseException:
        connection.close()
        raise
