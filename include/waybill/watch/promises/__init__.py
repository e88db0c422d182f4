"""The watch: measure the promises of all streams, once a minute, from outside of the jobs that keep them.

| module | content |
|---|---|
| `watch_run` | one watch: measure, store the incidents, send the messages, call the dead man's switch |
| `measure` | the findings about all streams, and their inputs |
| `services` | the services, each of which may not answer |
| `table_states` | when a watch reads the tables of a stream, and the findings about them |
| `promise_findings` | the findings about one promise, also if measuring it raises an exception |
| `log_figures` | figures of Kafka and ZooKeeper: archive lag, retention, named stops, pauses |
| `table_figures` | figures of the tables: table lag, deadlines, runs, shares, window, holds |
| `status` | the status document, which the pages in Airflow's UI show |
| `status_build`, `status_parts`, `status_runs` | its content, the data that is read for it, and its links to DAG runs |
| `status_writer` | storing it at the end of a watch |
| `action_log` | what people did, through all surfaces |
| `airflow_figures` | figures of Airflow: its components, failed runs, tasks that make no progress |
| `airflow_api` | the requests to Airflow's API that these figures need |
| `table_reader` | reading the state that these figures need |
| `samples` | the offsets that earlier watches saw |
| `volumes` | the messages of each hour, and the figure about them |
"""
