"""ZooKeeper's connection: addresses, TLS, credentials, and the ACL of the nodes."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from waybill.base.errors import ConfigError
from waybill.config.connections.connection import Connection, Endpoint, Tls, addresses

_TLS_OPTIONS = ("ca", "certfile", "keyfile", "keyfile_password", "verify_certs", "check_hostname")


class Access(StrEnum):
    """The ACL of the nodes that Waybill creates."""

    OPEN = "open"
    """Every client has all rights."""
    CREATOR = "creator"
    """Clients with Waybill's credentials have all rights, others none."""
    CREATOR_AND_READERS = "creator+read"
    """Clients with Waybill's credentials have all rights, others can only read."""


class ZooKeeperEndpoint(Endpoint):
    """ZooKeeper's servers and credentials.

    `hosts` is `host:port[,host:port…]`; `chroot` is the path above all nodes, or ''.
    """

    hosts: str
    chroot: str = ""
    username: str | None = None
    """For the authentication scheme `digest`; None: no authentication."""
    password: str | None = Field(default=None, repr=False)
    access: Access = Access.OPEN
    tls: Tls | None = None

    @property
    def where(self) -> str:
        """The servers and the connection that names them, for messages."""
        return f"{self.hosts} (connection {self.conn_id!r})" if self.conn_id else self.hosts

    @classmethod
    def of(cls, conn: Connection) -> ZooKeeperEndpoint:
        """Read a connection: host (or a comma-separated list), port, schema (the chroot), login and password (digest).

        Extras have the names of kazoo's arguments: `use_ssl`, `ca`, `certfile`, `keyfile`, `keyfile_password`,
        `verify_certs`, `check_hostname`; and `acl`. Raises `ConfigError` for a connection that cannot be used.
        """
        chroot = (conn.path or "").strip("/")
        if any(segment in {"", ".", ".."} for segment in chroot.split("/")) and chroot:
            raise ConfigError(f"connection {conn.conn_id!r}: schema {chroot!r} is no path of a ZooKeeper node")
        hosts = addresses(conn, conn.require(conn.host, "host"), conn.port or 2181)
        tls = _tls(conn)
        username, password = _digest(conn)
        access = Access(conn.choice("acl", Access, Access.CREATOR if username else Access.OPEN))
        if access is not Access.OPEN and not (username or (tls and tls.certificate_file)):
            conn.refuse(f"acl {access!s} in its extra needs a login and password, or a client certificate (certfile)")
        return cls(
            conn_id=conn.conn_id,
            hosts=",".join(hosts),
            chroot=chroot,
            username=username,
            password=password,
            access=access,
            tls=tls,
        )


def _digest(conn: Connection) -> tuple[str | None, str | None]:
    if conn.extra.get("sasl_options"):
        conn.refuse(
            "sasl_options in its extra is not supported: Waybill sends login and password with the scheme digest"
        )
    if bool(conn.login) != bool(conn.password):
        conn.refuse(f"it lacks a {'password' if conn.login else 'login'}: give both, or none")
    if conn.login and ":" in conn.login:
        conn.refuse("its login contains a colon, which separates login and password in ZooKeeper's digest")
    return conn.login or None, conn.password or None


def _tls(conn: Connection) -> Tls | None:
    if not conn.flag("use_ssl", False):
        if given := [key for key in _TLS_OPTIONS if conn.extra.get(key) not in (None, "")]:
            conn.refuse(f"{given[0]} in its extra needs use_ssl: true beside it")
        return None
    certificate, key = conn.text("certfile"), conn.text("keyfile")
    if key and not certificate:
        conn.refuse("keyfile in its extra needs certfile beside it")
    return Tls(
        conn_id=conn.conn_id,
        ca_file=conn.text("ca"),
        certificate_file=certificate,
        key_file=key,
        key_password=conn.text("keyfile_password"),
        verify=conn.flag("verify_certs", True),
        check_hostname=conn.flag("check_hostname", True),
    )
