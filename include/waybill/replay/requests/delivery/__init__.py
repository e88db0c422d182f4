"""Delivery of the messages of a replay request to its target.

- `webhook`: JSON batches to a URL, at least once. `batches` cuts and encodes them, `signature` signs them.
- `http`: one POST at a time to one checked address. `addresses`: which addresses are allowed for a webhook.
- `breaker`, `rate`: when a failing or slow target gets its next request.
- `s3_objects`: JSON lines in numbered objects, exactly once.
- `seen`: duplicates within one request.

docs/replay-webhooks.md describes the requests to receivers, docs/decisions/0028-replay-delivery.md the reasons.
"""
