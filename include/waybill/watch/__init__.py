"""The watch: measure the promises of all streams, once a minute, from outside of the jobs that keep them.

| module | content |
|---|---|
| `run` | one watch: measure, store the incidents, send the messages, ping the dead man's switch |
| `measure` | the services, and the findings about all streams |
| `log_figures` | figures of Kafka and ZooKeeper: archive lag, retention, named stops, pauses |
| `table_figures` | figures of the tables: table lag, deadlines, runs, shares, window, holds |
| `status` | the status document, which the pages in Airflow's UI show |
| `status_build`, `status_parts`, `status_runs` | what is in it, what is read for it, and the DAG runs that it links |
| `status_writer` | storing it at the end of a watch |
| `action_log` | the actions that people took on the pages |
| `airflow_figures` | figures of Airflow: its components, failed runs, tasks at a standstill |
| `airflow_api` | the requests to Airflow's API that these figures need |
| `table_reader` | reading the state that these figures need |
| `samples` | the offsets that earlier watches saw |
| `volumes` | the messages of each hour, and the figure about them |
"""
