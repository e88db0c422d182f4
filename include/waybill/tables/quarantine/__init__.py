"""Quarantine: read messages that could not be parsed, and move those that can be parsed now to the table, each once.

`view` reads and counts the rows, `row_filter` selects rows, `retry` parses them again with `reparse`, and `retry_audit`
checks them before they move. `staged` is the record of a retry, `quarantine_report` its figures. `files` reads and
rewrites the quarantine's data files. docs/protocol.md, "Retry of the quarantine", explains why no message is lost or
repeated. Import from these modules: the package imports none of them, since a command needs only one or two of them.
"""
