"""How a server proves who it is, and how we do: one TLS for Kafka and ZooKeeper."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from waybill.errors import ConfigError

__all__ = ["Tls"]

logger = logging.getLogger(__name__)


class Tls(BaseModel):
    """TLS 1.2 or newer, with the server's certificate checked unless told otherwise. Files are PEM."""

    model_config = ConfigDict(frozen=True)

    conn_id: str = ""
    """The connection that it is from, for messages."""
    ca_file: str | None = None
    """Who signs the server's certificate; None: whoever the system trusts."""
    ca_pem: str | None = Field(default=None, repr=False)
    """The same, as text."""
    certificate_file: str | None = None
    """Our own certificate, with its chain."""
    key_file: str | None = None
    key_password: str | None = Field(default=None, repr=False)
    verify: bool = True
    """Whether the server's certificate is checked at all."""
    check_hostname: bool = True
    """Whether it must also be for the host that was asked for."""

    def context(self) -> ssl.SSLContext:
        """For connections to servers. Raises `ConfigError` that names the file that cannot be used."""
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
            self._load_own(context, self.certificate_file)
        return context

    def _load_ca(self, context: ssl.SSLContext) -> None:
        what = f"the CA file {self.ca_file!r}" if self.ca_file else "the CA given as text"
        try:
            context.load_verify_locations(cafile=self.ca_file, cadata=self.ca_pem)
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            raise self._unusable(what, error) from None

    def _load_own(self, context: ssl.SSLContext, certificate_file: str) -> None:
        for path in filter(None, (certificate_file, self.key_file)):
            try:
                Path(path).read_bytes()
            except OSError as error:
                raise self._unusable(f"the file {path!r}", error) from None
        try:
            # Never None: OpenSSL would ask for the password at the terminal, and wait.
            context.load_cert_chain(certificate_file, self.key_file, password=self.key_password or "")
        except (OSError, ValueError) as error:
            key = self.key_file or certificate_file
            raise self._unusable(
                f"the certificate {certificate_file!r} with the key {key!r} and the key's password", error
            ) from None

    def _unusable(self, what: str, error: Exception) -> ConfigError:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        return ConfigError(f"connection {self.conn_id!r}: {what} cannot be used: {reason}")
