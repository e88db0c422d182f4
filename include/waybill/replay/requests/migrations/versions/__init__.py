"""The migrations, one file each. A migration imports nothing of Waybill, since Waybill's code changes."""
