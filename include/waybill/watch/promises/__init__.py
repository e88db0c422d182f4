"""The watch: measure the promises of all streams, once a minute, from outside of the jobs that keep them.

| module | content |
|---|---|
| `watch_run` | one watch: measure, store the incidents, send the messages, ping the dead man's switch |
| `measure` | the findings about all streams, and what they follow from |
| `services` | the services, each of which may be away |
| `table_states` | when the tables of a stream are read, and the findings about them |
| `promise_findings` | the findings about one promise, whatever happens while it is measured |
| `log_figures` | figures of Kafka and ZooKeeper: archive lag, retention, named stops, pauses |
| `table_figures` | figures of the tables: table lag, deadlines, runs, shares, window, holds |
| `status` | the status document, which the pages in Airflow's UI show |
| `status_build`, `status_parts`, `status_runs` | what is in it, what is read for it, and the DAG runs that it links |
| `status_writer` | storing it at the end of a watch |
| `action_log` | what people did, through all surfaces |
| `airflow_figures` | figures of Airflow: its components, failed runs, tasks at a standstill |
| `airflow_api` | the requests to Airflow's API that these figures need |
| `table_reader` | reading the state that these figures need |
| `samples` | the offsets that earlier watches saw |
| `volumes` | the messages of each hour, and the figure about them |
"""
