"""Metrics for Prometheus: what the watch measures, as an OpenMetrics endpoint.

| module | content |
|---|---|
| `families` | the metrics: names, units, labels, and how they follow from a measurement |
| `endpoint` | measuring for each scrape, over HTTP or once |

A process of its own serves them (`waybill metrics`), since tasks end after seconds. It reads what the jobs have
committed, as the watch does, so the counters of rows and messages are exact, and survive any restart.
"""
