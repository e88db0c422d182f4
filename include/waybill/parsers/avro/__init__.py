"""Messages in Avro: the schema walked by a compiled loop, by one schema of a file or by those of a registry."""
