"""The clients of services, made from their endpoints: who we are to them, TLS, and what a failure to get in means."""
