"""Kafka's connection: addresses, TLS, SASL. Options have librdkafka's names, as in Airflow's Kafka connections."""

from __future__ import annotations

import re
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from waybill.config.connections.connection import Connection, Endpoint, Tls, addresses

_SASL_OPTIONS = frozenset({"sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"})
_TLS_OPTIONS = frozenset(
    {
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
        "enable.ssl.certificate.verification",
    }
)
# librdkafka's options about security. Its other options concern consumers and producers, which Waybill does not have.
_ABOUT_SECURITY = re.compile(r"security\.|ssl[._]|sasl[._]|enable\.ssl|enable\.sasl|https\.")


class SecurityProtocol(StrEnum):
    """The protocol of a Kafka listener."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"


class SaslMechanism(StrEnum):
    """How Waybill authenticates. GSSAPI, OAUTHBEARER and AWS_MSK_IAM are refused: no test here covers them."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"


class Sasl(BaseModel):
    """Waybill's credentials for Kafka."""

    model_config = ConfigDict(frozen=True)

    mechanism: SaslMechanism
    username: str
    password: str = Field(repr=False)


class KafkaEndpoint(Endpoint):
    """Kafka's servers, protocol and credentials."""

    bootstrap_servers: tuple[str, ...]
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    tls: Tls | None = None
    """Set for the protocols SSL and SASL_SSL."""
    sasl: Sasl | None = None
    """Set for the protocols SASL_PLAINTEXT and SASL_SSL."""

    @property
    def where(self) -> str:
        """The servers and the connection that names them, for messages."""
        servers = ",".join(self.bootstrap_servers)
        return f"{servers} (connection {self.conn_id!r})" if self.conn_id else servers

    @classmethod
    def of(cls, conn: Connection) -> KafkaEndpoint:
        """Read a connection: its extra `bootstrap.servers`, or its host and port.

        Raises `ConfigError` for a connection that cannot be used, and for a security option that Waybill would ignore.
        """
        servers = conn.text("bootstrap.servers") or conn.host
        required = conn.require(servers, "bootstrap.servers in its extra")
        protocol = SecurityProtocol(conn.choice("security.protocol", SecurityProtocol, SecurityProtocol.PLAINTEXT))
        _refuse_ignored_options(conn, protocol)
        return cls(
            conn_id=conn.conn_id,
            bootstrap_servers=addresses(conn, required, conn.port or 9092),
            protocol=protocol,
            tls=_tls(conn) if _encrypted(protocol) else None,
            sasl=_sasl(conn) if _authenticated(protocol) else None,
        )


def _encrypted(protocol: SecurityProtocol) -> bool:
    return protocol in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)


def _authenticated(protocol: SecurityProtocol) -> bool:
    return protocol in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


def _refuse_ignored_options(conn: Connection, protocol: SecurityProtocol) -> None:
    """Refuse security options that Waybill does not follow.

    An ignored option could cause unencrypted data, trust in any server, or an error that does not name the cause.
    """
    for key in sorted(key for key in conn.extra if _ABOUT_SECURITY.match(key) and conn.extra[key] not in (None, "")):
        if key == "security.protocol":
            continue
        if key not in _SASL_OPTIONS | _TLS_OPTIONS:
            known = ", ".join(sorted(_SASL_OPTIONS | _TLS_OPTIONS))
            conn.refuse(f"{key} in its extra is not supported; the security options are: {known}")
        if key in _TLS_OPTIONS and not _encrypted(protocol):
            conn.refuse(f"{key} in its extra needs security.protocol SSL or SASL_SSL, and it is {protocol}")
        if key in _SASL_OPTIONS and not _authenticated(protocol):
            conn.refuse(f"{key} in its extra needs security.protocol SASL_SSL or SASL_PLAINTEXT, and it is {protocol}")
    if (conn.login or conn.password) and not _authenticated(protocol):
        conn.refuse(f"its login and password need security.protocol SASL_SSL or SASL_PLAINTEXT, and it is {protocol}")


def _sasl(conn: Connection) -> Sasl:
    key = "sasl.mechanism" if conn.extra.get("sasl.mechanism") else "sasl.mechanisms"
    conn.require(conn.text(key), f"sasl.mechanism in its extra ({', '.join(SaslMechanism)})")
    return Sasl(
        mechanism=SaslMechanism(conn.choice(key, SaslMechanism, "")),
        username=conn.require(conn.text("sasl.username") or conn.login, "sasl.username in its extra and no login"),
        password=conn.require(
            conn.text("sasl.password") or conn.password, "sasl.password in its extra and no password"
        ),
    )


def _tls(conn: Connection) -> Tls:
    certificate, key = conn.text("ssl.certificate.location"), conn.text("ssl.key.location")
    if key and not certificate:
        conn.refuse("ssl.key.location in its extra needs ssl.certificate.location beside it")
    check = conn.choice("ssl.endpoint.identification.algorithm", ("https", "none"), "https")
    return Tls(
        conn_id=conn.conn_id,
        ca_file=conn.text("ssl.ca.location"),
        ca_pem=conn.text("ssl.ca.pem"),
        certificate_file=certificate,
        key_file=key,
        key_password=conn.text("ssl.key.password"),
        verify=conn.flag("enable.ssl.certificate.verification", True),
        check_hostname=check == "https",
    )
