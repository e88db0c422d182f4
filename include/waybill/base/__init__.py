"""Modules that every room uses.

- `errors`: the exceptions that Waybill raises on purpose.
- `decision`: a decision of a person, before it is stored.
- `documents`: reads and writes stored JSON documents.
- `metering`: S3 requests, CPU and memory of a task, for its cost.
- `failpoints`: places where tests stop a process.
- `printable`: converts foreign names to text that terminals and logs can show.
"""
