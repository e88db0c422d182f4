"""The key index of dedup: which keys were kept, where and when. Derived from the unique table."""
