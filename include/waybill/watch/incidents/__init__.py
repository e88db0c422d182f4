"""Incidents: one for each broken promise, told once, reminded, escalated, acknowledged, and resolved.

| module | content |
|---|---|
| `finding` | what a watch found |
| `incident` | incidents, the messages about them, and the document that holds both |
| `rules` | when an incident opens, who is told, when it is over: pure functions |
| `ids` | the ids of incidents, whatever their subjects are |
| `merge` | one book of two that parted while ZooKeeper was away |
| `book_store` | where the book is stored, and how two watches change it one after the other |
| `book_node` | the book in ZooKeeper, in parts if it is large |
| `interim_books` | the books of the time in which ZooKeeper does not answer, in S3 or on this machine |
| `book_document` | the stored form of a book |
"""
