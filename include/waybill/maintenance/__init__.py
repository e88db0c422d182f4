"""Maintenance: a stream's tables kept in shape, and what nobody needs any more removed.

Planned here, without Spark: what there is to do, what must stay. Iceberg's procedures, which do the work on the tables,
are behind `waybill.maintenance.procedures`; Spark's are in `waybill.spark.procedures`.
"""
