"""Iceberg in a Spark session: attach the catalog, and call Iceberg's maintenance procedures through Spark SQL."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from waybill.base.errors import ConfigError, ProcedureFailed
from waybill.services.store import ListedObject
from waybill.tables.maintenance.procedures import CompactionResult, ExpiryResult, ManifestRewriteResult
from waybill.tables.spark.catalog import JARS, SparkCatalog

logger = logging.getLogger(__name__)

_REQUIRED_CLASSES = ("org.apache.iceberg.spark.SparkCatalog", "org.apache.iceberg.aws.s3.S3FileIO")
_STORE_PASSWORD = "waybill"  # not a secret: certificates are public, but PKCS #12 requires a password
_TRUST_STORE = "javax.net.ssl.trustStore"

_CANDIDATES = "waybill_orphan_candidates"
_MAX_COMPACTION_COMMITS = 4
_INSTANT = timedelta(milliseconds=1)
_CANDIDATE_SCHEMA = pa.schema([("file_path", pa.string()), ("last_modified", pa.timestamp("us", tz="UTC"))])


# --- the catalog ------------------------------------------------------------------------------------------------------


def attach_catalog(session: SparkSession, catalog: SparkCatalog) -> None:
    """Configure `catalog` in the session, under its name.

    Raises `ConfigError` if Iceberg's jars are not on Spark's class path, or executors would not trust S3's certificate.
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
    for name in _REQUIRED_CLASSES:
        try:
            loader.loadClass(name)
        except Py4JJavaError as error:
            raise ConfigError(
                f"Spark does not find {name}: add Iceberg's jars to spark.jars.packages in its "
                f"spark-defaults.conf: {','.join(JARS)}"
            ) from error


def _check_executors(session: SparkSession, ca_file: str) -> None:
    """Check that executors on other machines trust the CA: their JVMs only read options when they start."""
    conf = session.sparkContext.getConf()
    local = (conf.get("spark.master") or "").startswith("local")
    if not local and _TRUST_STORE not in (conf.get("spark.executor.extraJavaOptions") or ""):
        raise ConfigError(
            f"S3's certificate is signed by {ca_file}, which Spark's executors do not trust yet: add it to a trust "
            f"store on each of them (keytool -importcert), and set -D{_TRUST_STORE}=… in "
            f"spark.executor.extraJavaOptions"
        )


def _trust(jvm: Any, ca_file: str) -> None:
    """Let this JVM trust the CAs in `ca_file` in addition to its default CAs."""
    if jvm.java.lang.System.getProperty(_TRUST_STORE):
        return
    try:
        source = jvm.java.io.FileInputStream(ca_file)
        certificates = jvm.java.security.cert.CertificateFactory.getInstance("X.509").generateCertificates(source)
    except Py4JJavaError as error:
        raise ConfigError(f"the CA file {ca_file!r} cannot be used: {error.java_exception.getMessage()}") from error
    store = jvm.java.security.KeyStore.getInstance("PKCS12")
    store.load(None, None)
    for number, certificate in enumerate([*_default_cas(jvm), *certificates]):
        store.setCertificateEntry(str(number), certificate)
    path = Path(tempfile.mkdtemp(prefix="waybill-trust-")) / "trust.p12"
    target = jvm.java.io.FileOutputStream(str(path))
    store.store(target, jvm.java.lang.String(_STORE_PASSWORD).toCharArray())
    target.close()
    for key, value in ((_TRUST_STORE, str(path)), (f"{_TRUST_STORE}Password", _STORE_PASSWORD)):
        jvm.java.lang.System.setProperty(key, value)
    jvm.java.lang.System.setProperty(f"{_TRUST_STORE}Type", "PKCS12")


def _default_cas(jvm: Any) -> list[Any]:
    ssl = jvm.javax.net.ssl
    factory = ssl.TrustManagerFactory.getInstance(ssl.TrustManagerFactory.getDefaultAlgorithm())
    factory.init(None)
    return list(factory.getTrustManagers()[0].getAcceptedIssuers())


# --- procedures -------------------------------------------------------------------------------------------------------


class SparkProcedures:
    """Implements `waybill.tables.maintenance.procedures.Procedures` on a session to which `catalog` is attached.

    `now`: the clock for the age of orphan file candidates.
    """

    def __init__(
        self, session: SparkSession, catalog: str, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._session = session
        self._catalog = catalog
        self._now = now

    def rewrite_data_files(
        self, table: str, *, sort: bool, target_file_bytes: int, min_input_files: int
    ) -> CompactionResult:
        """See the protocol. A large table is committed in up to four parts, which stay if a later part fails."""
        options = {
            "target-file-size-bytes": target_file_bytes,
            "min-input-files": min_input_files,
            "partial-progress.enabled": "true",
            "partial-progress.max-commits": _MAX_COMPACTION_COMMITS,
        }
        pairs = ", ".join(f"'{key}', '{value}'" for key, value in options.items())
        row = self._call(
            "rewrite_data_files", table, f"strategy => '{'sort' if sort else 'binpack'}', options => map({pairs})"
        )
        return CompactionResult(
            files_before=row["rewritten_data_files_count"],
            files_after=row["added_data_files_count"],
            bytes_before=row["rewritten_bytes_count"],
            failed_files=row["failed_data_files_count"],
        )

    def rewrite_manifests(self, table: str) -> ManifestRewriteResult:
        """See the protocol."""
        row = self._call("rewrite_manifests", table)
        return ManifestRewriteResult(row["rewritten_manifests_count"], row["added_manifests_count"])

    def expire_snapshots(self, table: str, *, older_than: datetime, keep_last: int) -> ExpiryResult:
        """See the protocol."""
        row = self._call(
            "expire_snapshots", table, f"older_than => {_timestamp(older_than)}, retain_last => {int(keep_last)}"
        )
        return ExpiryResult(
            data_files=row["deleted_data_files_count"],
            delete_files=row["deleted_position_delete_files_count"] + row["deleted_equality_delete_files_count"],
            manifests=row["deleted_manifest_files_count"],
            manifest_lists=row["deleted_manifest_lists_count"],
        )

    def remove_orphan_files(self, table: str, candidates: Sequence[tuple[str, ListedObject]]) -> list[str]:
        """See the protocol. Iceberg reads the table's snapshots after this call, and considers only these files."""
        now = self._now()
        # Iceberg refuses files of the last day by the machine's clock, so their ages are converted to that clock.
        machine = datetime.now(UTC)
        rows = pa.table(
            [[path for path, _ in candidates], [machine - (now - entry.modified) for _, entry in candidates]],
            schema=_CANDIDATE_SCHEMA,
        )
        newest = max(entry.modified for _, entry in candidates)
        older_than = machine - (now - newest) + _INSTANT
        self._session.createDataFrame(rows).createOrReplaceTempView(_CANDIDATES)
        try:
            removed = self._rows(
                "remove_orphan_files",
                table,
                f"older_than => {_timestamp(older_than)}, file_list_view => '{_CANDIDATES}'",
            )
        finally:
            self._session.catalog.dropTempView(_CANDIDATES)
        return [row["orphan_file_location"] for row in removed]

    def _call(self, procedure: str, table: str, arguments: str = "") -> Row:
        (row,) = self._rows(procedure, table, arguments)
        return row

    def _rows(self, procedure: str, table: str, arguments: str) -> list[Row]:
        call = f"CALL {self._catalog}.system.{procedure}(table => '{self._catalog}.{table}'"
        call += f", {arguments})" if arguments else ")"
        logger.debug("%s", call)
        with _translate_errors(procedure, table):
            return self._session.sql(call).collect()


def _timestamp(at: datetime) -> str:
    return f"TIMESTAMP '{at.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f} UTC'"


@contextmanager
def _translate_errors(procedure: str, table: str) -> Iterator[None]:
    """Raise errors of Spark as `ProcedureFailed`, with their first line; the rest is in Spark's log."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise ProcedureFailed(procedure, table, _first_line(error)) from error


def _first_line(error: Any) -> str:
    text = error.java_exception.toString() if isinstance(error, Py4JJavaError) else str(error)
    return str(text).strip().splitlines()[0][:500] if str(text).strip() else type(error).__name__
