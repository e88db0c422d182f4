"""Replay: deliver the messages of some keys between two times to a webhook, a Kafka topic or S3.

- `request`, `targets`: what a requester asks for, and the checks of it. `states`: the states of a request.
- `database`: the tables, and the connection to them. `migrations`: how a database gets these tables, with Alembic.
- `queue`: creating, listing and cancelling requests. `claims`: how workers claim and serve them.
- `api`: the HTTP API.

docs/decisions/0027-replay-requests.md has the reasons.
"""
