"""Waybill's errors for kafka-python's: the action that failed, the servers, the cause, and what to check.

An error that no retry can remove (credentials, ACLs, certificates, an old broker) becomes a `ConfigError`, which names
the setting to correct. Every other error becomes `KafkaUnavailable`.
"""

from __future__ import annotations

from kafka import errors as kafka_errors

from waybill.connections import KafkaEndpoint
from waybill.errors import ConfigError, KafkaUnavailable
from waybill.sources.transport import TlsExpected, TlsRefused

__all__ = ["translate_error"]

_TOO_OLD = kafka_errors.IncompatibleBrokerVersion | kafka_errors.UnsupportedVersionError


def translate_error(action: str, error: BaseException, endpoint: KafkaEndpoint) -> ConfigError | KafkaUnavailable:
    """Return Waybill's error for one of kafka-python's. `action` states what failed: "could not list topics"."""
    message = f"Kafka at {endpoint.where}: {action}: {_describe(error)}"
    remedy = _find_remedy(error, endpoint)
    if remedy is not None:
        return ConfigError(f"{message}. {remedy}")
    return KafkaUnavailable(f"{message}{_protocol_hint(error, endpoint)}")


def _describe(error: BaseException) -> str:
    text = str(error.args[0]).removeprefix(f"{type(error).__name__}: ") if error.args else str(error)
    if isinstance(error, kafka_errors.AuthorizationError):
        return f"not allowed ({type(error).__name__}: {text})"
    if isinstance(error, kafka_errors.SaslAuthenticationFailedError):
        return f"the credentials are refused ({text})"
    if isinstance(error, _TOO_OLD):
        return f"the brokers are too old ({text})"
    return text


def _find_remedy(error: BaseException, endpoint: KafkaEndpoint) -> str | None:
    """Return what to correct for an error that no retry can remove; None for every other error."""
    connection = endpoint.remedy
    if isinstance(error, kafka_errors.AuthorizationError):
        user = f"user {endpoint.sasl.username!r}" if endpoint.sasl else "the user"
        resource = "group" if isinstance(error, kafka_errors.GroupAuthorizationFailedError) else "topic"
        return f"Give {user} of {connection} the ACLs Describe and Read on the {resource}"
    if isinstance(error, kafka_errors.SaslAuthenticationFailedError):
        assert endpoint.sasl is not None
        return f"Check user {endpoint.sasl.username!r}, the password and sasl.mechanism of {connection}"
    if isinstance(error, kafka_errors.UnsupportedSaslMechanismError | kafka_errors.IllegalSaslStateError):
        return f"Check sasl.mechanism and security.protocol of {connection}: the port's listener has other ones"
    if isinstance(error, TlsRefused):
        return f"Check ssl.ca.location, ssl.certificate.location, the host name and security.protocol of {connection}"
    if isinstance(error, TlsExpected):
        return f"Set security.protocol SSL or SASL_SSL in {connection}; it is {endpoint.protocol}"
    if isinstance(error, _TOO_OLD):
        return "Waybill needs Kafka 2.8 or newer"
    return None


def _protocol_hint(error: BaseException, endpoint: KafkaEndpoint) -> str:
    """Return a hint for a connection that the server closed without a reason: often its port has another protocol."""
    if "disconnected" not in str(error) and "handshake" not in str(error):
        return ""
    return f". Is security.protocol {endpoint.protocol} of {endpoint.remedy} the protocol of this port?"
