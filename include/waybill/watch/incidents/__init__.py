"""Incidents: one for each broken promise.

People are notified and reminded; an incident is escalated, acknowledged, resolved.

| module | content |
|---|---|
| `finding` | what a watch found |
| `incident` | incidents, the messages about them, and the document that holds both |
| `rules` | when an incident opens, who is notified, when it is resolved: pure functions |
| `ids` | the ids of incidents, for subjects with any characters |
| `merge` | merges two books that diverged while ZooKeeper did not answer |
| `book_store` | where the book is stored, and how two watches change it one after the other |
| `book_node` | the book in ZooKeeper, in parts if it is large |
| `interim_books` | the books that are stored in S3 or on this machine while ZooKeeper does not answer |
| `book_document` | the stored form of a book |
"""
