"""Kafka's own safety: topics as declared, risks, what a lost broker would cost, and what an election lost."""
