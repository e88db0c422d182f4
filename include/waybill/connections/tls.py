"""TLS settings of Kafka, ZooKeeper and schema registries."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from waybill.errors import ConfigError

__all__ = ["Tls"]

logger = logging.getLogger(__name__)


class Tls(BaseModel):
    """TLS 1.2 or newer. The server's certificate is checked unless `verify` is false. Files are PEM."""

    model_config = ConfigDict(frozen=True)

    conn_id: str = ""
    """The connection it was read from, for messages."""
    ca_file: str | None = None
    """CA that signed the server's certificate; None: the CAs that the system trusts."""
    ca_pem: str | None = Field(default=None, repr=False)
    """The CA as text instead of a file."""
    certificate_file: str | None = None
    """The client certificate, with its chain."""
    key_file: str | None = None
    key_password: str | None = Field(default=None, repr=False)
    verify: bool = True
    """Whether the server's certificate is checked at all."""
    check_hostname: bool = True
    """Whether the certificate must be for the requested host name."""

    def context(self) -> ssl.SSLContext:
        """Return an SSL context for clients. Raises `ConfigError`, which names the file, if a file cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.verify and self.check_hostname
        context.verify_mode = ssl.CERT_REQUIRED if self.verify else ssl.CERT_NONE
        if not self.verify:
            logger.warning("connection %r: the servers' certificates are not checked", self.conn_id)
        if self.ca_file or self.ca_pem:
            self._load_ca(context)
        else:
            context.load_default_certs()
        if self.certificate_file:
            self._load_certificate(context, self.certificate_file)
        return context

    def _load_ca(self, context: ssl.SSLContext) -> None:
        what = f"the CA file {self.ca_file!r}" if self.ca_file else "the CA given as text"
        try:
            context.load_verify_locations(cafile=self.ca_file, cadata=self.ca_pem)
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            raise self._unusable(what, error) from None

    def _load_certificate(self, context: ssl.SSLContext, certificate_file: str) -> None:
        for path in filter(None, (certificate_file, self.key_file)):
            try:
                Path(path).read_bytes()
            except OSError as error:
                raise self._unusable(f"the file {path!r}", error) from None
        try:
            # Never None: OpenSSL would prompt for the password at the terminal, and wait.
            context.load_cert_chain(certificate_file, self.key_file, password=self.key_password or "")
        except (OSError, ValueError) as error:
            key = self.key_file or certificate_file
            raise self._unusable(
                f"the certificate {certificate_file!r} with the key {key!r} and the key's password", error
            ) from None

    def _unusable(self, what: str, error: Exception) -> ConfigError:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        return ConfigError(f"connection {self.conn_id!r}: {what} cannot be used: {reason}")
