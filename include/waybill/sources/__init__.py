"""Record batches out of a stream. One module a kind of stream; each is imported by who uses it."""
