"""Deliver archived messages again: to a webhook, a topic or S3 on request, or to a topic that lost them.

- `requests`: replay requests, their queue, workers, delivery and index.
- `republish`: messages that an unclean election took back.
"""
