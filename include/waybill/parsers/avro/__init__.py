"""The parser `avro`: a compiled loop reads messages by one schema in a file, or by the schemas of a registry."""
