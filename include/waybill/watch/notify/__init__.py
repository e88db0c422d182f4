"""Messages about incidents, and the channels that they are sent to.

| module | content |
|---|---|
| `meanings` | what each promise means for consumers, in words |
| `message` | a message: as plain text, HTML, Slack blocks, and JSON |
| `channels` | sending a message by email, to Slack, or to a webhook |
"""
