"""Brokers that are killed, frozen and restarted in seeded orders, and what the watch reports about them."""
