"""The health of Kafka: declared topics, risks, the effects of a lost broker, and messages that an election lost."""
