"""For people on call: promises and incidents, alerts, the ledger, verify, costs, traces, and the health of Kafka.

- `incidents`: which promises are broken, since when, and who has been notified.
- `notify`: mail, Slack and webhooks.
- `kafka_cluster`: Kafka's health, declared topics, and changes to topics.
- `verify`: each message is stored exactly once.
- `ledger`, `cost`, `trace`: the balance of a stream, what it costs, and the path of one message.
- `promises`: figures and their limits, measured by the DAG `watch`.
- `metrics`: the same figures for Prometheus.
"""
