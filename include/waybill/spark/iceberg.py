"""Iceberg in a Spark session: the catalog made known to it, once it is sure that Iceberg's jars are there."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from waybill.errors import ConfigError
from waybill.spark.catalog import JARS, SparkCatalog

__all__ = ["attach_catalog"]

_NEEDED = ("org.apache.iceberg.spark.SparkCatalog", "org.apache.iceberg.aws.s3.S3FileIO")
_STORE_PASSWORD = "waybill"  # no secret: certificates are none, and PKCS #12 needs a password
_TRUST_STORE = "javax.net.ssl.trustStore"


def attach_catalog(session: SparkSession, catalog: SparkCatalog) -> None:
    """Make `catalog` known to the session, under its name.

    Raises `ConfigError` when Iceberg's jars are not on Spark's class path, or executors would not trust the server.
    """
    jvm: Any = session._jvm
    _check_jars(jvm)
    for key, value in catalog.system_properties.items():
        jvm.java.lang.System.setProperty(key, value)
    if catalog.ca_file is not None:
        _check_executors(session, catalog.ca_file)
        _trust(jvm, catalog.ca_file)
    for key, value in catalog.settings().items():
        session.conf.set(key, value)


def _check_jars(jvm: Any) -> None:
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for name in _NEEDED:
        try:
            loader.loadClass(name)
        except Py4JJavaError as error:
            raise ConfigError(
                f"Spark does not find {name}: give it Iceberg's jars, by spark.jars.packages in its "
                f"spark-defaults.conf: {','.join(JARS)}"
            ) from error


def _check_executors(session: SparkSession, ca_file: str) -> None:
    """Executors on other machines have JVMs of their own, which must be told when they start."""
    conf = session.sparkContext.getConf()
    local = (conf.get("spark.master") or "").startswith("local")
    if not local and _TRUST_STORE not in (conf.get("spark.executor.extraJavaOptions") or ""):
        raise ConfigError(
            f"S3's certificate is signed by {ca_file}, which Spark's executors do not trust yet: put it into a trust "
            f"store on each of them (keytool -importcert), and name it by -D{_TRUST_STORE}=… in "
            f"spark.executor.extraJavaOptions"
        )


def _trust(jvm: Any, ca_file: str) -> None:
    """Have this JVM trust the signers in `ca_file` besides those that it trusts anyway."""
    if jvm.java.lang.System.getProperty(_TRUST_STORE):
        return
    try:
        source = jvm.java.io.FileInputStream(ca_file)
        certificates = jvm.java.security.cert.CertificateFactory.getInstance("X.509").generateCertificates(source)
    except Py4JJavaError as error:
        raise ConfigError(f"the CA file {ca_file!r} cannot be used: {error.java_exception.getMessage()}") from error
    store = jvm.java.security.KeyStore.getInstance("PKCS12")
    store.load(None, None)
    for number, certificate in enumerate([*_trusted_anyway(jvm), *certificates]):
        store.setCertificateEntry(str(number), certificate)
    path = Path(tempfile.mkdtemp(prefix="waybill-trust-")) / "trust.p12"
    target = jvm.java.io.FileOutputStream(str(path))
    store.store(target, jvm.java.lang.String(_STORE_PASSWORD).toCharArray())
    target.close()
    for key, value in ((_TRUST_STORE, str(path)), (f"{_TRUST_STORE}Password", _STORE_PASSWORD)):
        jvm.java.lang.System.setProperty(key, value)
    jvm.java.lang.System.setProperty(f"{_TRUST_STORE}Type", "PKCS12")


def _trusted_anyway(jvm: Any) -> list[Any]:
    ssl = jvm.javax.net.ssl
    factory = ssl.TrustManagerFactory.getInstance(ssl.TrustManagerFactory.getDefaultAlgorithm())
    factory.init(None)
    return list(factory.getTrustManagers()[0].getAcceptedIssuers())
