"""Spark: the session, tasks carried out by executors, and the data source `waybill_backup`."""
