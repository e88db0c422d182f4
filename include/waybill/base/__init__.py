"""What every room uses.

- `errors`: the exceptions that Waybill raises on purpose.
- `decision`: a decision of a person, before it is stored.
- `documents`: how stored JSON documents are read and written.
- `metering`: S3 requests, CPU and memory of a task, for its cost.
- `failpoints`: places where tests stop a process.
- `printable`: foreign names as text that a terminal and a log can show.
"""
