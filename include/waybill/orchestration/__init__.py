"""What the DAG files share: connections out of Airflow, the Spark operator, the report of an ingest run."""
