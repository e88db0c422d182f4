"""The local stack: Kafka, ZooKeeper, S3 and Airflow as ordinary processes, for the demo and the tests."""
