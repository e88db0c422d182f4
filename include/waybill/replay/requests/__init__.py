"""Replay: deliver the messages of some keys between two times to a webhook, a Kafka topic or S3.

- `request`, `targets`: the content of a request, and its checks. `states`: the states of a request.
- `database`: the tables, and the connection to them. `migrations`: they create these tables in a database, with
  Alembic.
- `queue`: creating, listing and cancelling requests. `claims`: how workers claim and serve them.
- `api`: the HTTP API.

docs/decisions/0027-replay-requests.md has the reasons.
"""
