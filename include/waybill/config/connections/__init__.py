"""Addresses and secrets of services, from Airflow connections.

The config names connections; it never holds an address with a password. A connection is read from the environment
variable `AIRFLOW_CONN_<ID>` (JSON or URI), where Airflow itself looks first, so the CLI, a Spark driver and a notebook
need no Airflow. Inside an Airflow task, `waybill.interfaces.airflow` also searches secrets backends and the connections
of the UI.

An option that concerns security is never ignored: Waybill follows it, or refuses the connection.
"""

from waybill.config.connections.connection import CatalogEndpoint, Connection, Tls, connection_variable, find_connection
from waybill.config.connections.http import AirflowEndpoint, HttpEndpoint, RegistryEndpoint
from waybill.config.connections.kafka import KafkaEndpoint, Sasl, SaslMechanism, SecurityProtocol
from waybill.config.connections.kinesis import KinesisEndpoint
from waybill.config.connections.s3 import AssumedRole, Checksums, Encryption, S3Endpoint
from waybill.config.connections.zookeeper import Access, ZooKeeperEndpoint

__all__ = [
    "Access",
    "AirflowEndpoint",
    "AssumedRole",
    "CatalogEndpoint",
    "Checksums",
    "Connection",
    "Encryption",
    "HttpEndpoint",
    "KafkaEndpoint",
    "KinesisEndpoint",
    "RegistryEndpoint",
    "S3Endpoint",
    "Sasl",
    "SaslMechanism",
    "SecurityProtocol",
    "Tls",
    "ZooKeeperEndpoint",
    "connection_variable",
    "find_connection",
]
