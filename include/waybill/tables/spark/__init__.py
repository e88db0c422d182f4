"""Spark: sessions, the execution of tasks on executors, Iceberg's procedures, and the data source `waybill_backup`.

- `session`, `catalog`, `iceberg`: start Spark, and configure the Iceberg catalog in it; call maintenance procedures.
- `execute`: runs the tasks of partition runs and sweeps; `daemon`: the Python daemon that forks their workers;
  `layout`: refuses executors that have another version of Waybill.
- `group_job`: one application for the streams of a job. `selection` chooses them, `side_by_side` works on several at a
  time, `group_results` reports the result of each stream to Airflow.
- `job`: code that the scripts of `spark_jobs/` share. It does not import pyspark, and neither do `catalog`, `selection`
  and `group_results`.
- `source`: the archive as a DataFrame.
"""
