"""The migrations, one file each. Each creates what it needs itself, and imports nothing of Waybill, which changes."""
