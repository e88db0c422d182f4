"""Waybill: event streams archived to S3 without losing or repeating a message, and turned into Iceberg tables."""

__version__ = "0.1.0"
