"""Spark: sessions, the execution of tasks on executors, Iceberg's procedures, and the data source `waybill_backup`.

- `session`, `catalog`, `iceberg`: start Spark, and configure the Iceberg catalog in it; call maintenance procedures.
- `execute`: runs the tasks of partition runs and sweeps; `daemon`: the Python daemon that forks their workers.
- `job`: what the scripts of `spark_jobs/` share. It does not import pyspark, and neither does `catalog`.
- `source`: the archive as a DataFrame.
"""
