"""Shared code of the DAG files. Only this package imports Airflow.

- `spark_submit`: the operator for Waybill's Spark jobs, and the assets that start DAGs. Imported when DAGs are parsed.
- `dag_arguments`: the arguments that the DAG files pass to `dag`; it imports no operators, since each ingest task
  imports it.
- `forms`: the forms of DAGs that people trigger, made of the declarations of operations.
- `groups`: shared code of the DAGs of groups; the tasks that show the result of each stream.
- `tasks`: the code of the other tasks. Imported when a task runs.
- `airflow_cleanup`: runs `airflow db clean` from a task.
"""
