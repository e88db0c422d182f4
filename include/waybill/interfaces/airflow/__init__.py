"""What the DAG files share. Only this package imports Airflow.

- `spark_submit`: the operator for Waybill's Spark jobs, and the assets that start DAGs. Imported when DAGs are parsed.
- `dag_arguments`: what the DAG files pass to `dag`; without operators, since each ingest task imports it.
- `forms`: the forms of DAGs that people trigger, made of the declarations of operations.
- `groups`: what the DAGs of groups share; the tasks that show the result of each stream.
- `tasks`: the code of the other tasks. Imported when a task runs.
- `airflow_cleanup`: runs `airflow db clean` from a task.
"""
