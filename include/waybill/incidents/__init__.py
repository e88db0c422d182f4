"""Incidents: one for each broken promise, told once, reminded, escalated, acknowledged, and resolved.

| module | content |
|---|---|
| `finding` | what a watch found |
| `incident` | incidents, the messages about them, and the document that holds both |
| `rules` | when an incident opens, who is told, when it is over: pure functions |
| `book_store` | where the document is stored, and how two watches change it one after the other |
"""
