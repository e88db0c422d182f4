"""Endpoints and secrets, by the name of an Airflow connection.

The config names connections; it never holds an address with a password. A connection is looked up where Airflow
itself looks first, in the environment variable `AIRFLOW_CONN_<ID>` (JSON or URI), so that the CLI, a Spark driver and
a notebook need no Airflow. Inside an Airflow task the other places (secrets backends, the connections of the UI) are
asked as well: see `waybill.orchestration`.

An option that says how to be secure is never passed over: it is followed, or the connection is refused.
"""

from waybill.connections.connection import CatalogEndpoint, Connection, connection, variable
from waybill.connections.kafka import KafkaEndpoint, Sasl, SaslMechanism, SecurityProtocol
from waybill.connections.registry import RegistryEndpoint
from waybill.connections.s3 import AssumedRole, Encryption, S3Endpoint
from waybill.connections.tls import Tls
from waybill.connections.zookeeper import Access, ZooKeeperEndpoint

__all__ = [
    "Access",
    "AssumedRole",
    "CatalogEndpoint",
    "Connection",
    "Encryption",
    "KafkaEndpoint",
    "RegistryEndpoint",
    "S3Endpoint",
    "Sasl",
    "SaslMechanism",
    "SecurityProtocol",
    "Tls",
    "ZooKeeperEndpoint",
    "connection",
    "variable",
]
