"""What people on call see: promises and incidents, alerts, the ledger, verify, costs, traces, and Kafka's own safety.

- `incidents`: what is broken, since when, and who knows.
- `notify`: mail, Slack and webhooks.
- `kafka_cluster`: Kafka's health, topics as declared, and changes of them.
- `verify`: each message is stored exactly once.
- `ledger`, `cost`, `trace`: the balance of a stream, what it costs, and the path of one message.
- `promises`: figures and their limits, measured by the DAG `watch`.
- `metrics`: the same figures for Prometheus.
"""
