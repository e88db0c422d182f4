"""Clients of services, created from their endpoints: credentials, TLS, and errors of the connection."""
