"""Carries plans out at the API server: requests (pure), the client that sends them, and the order of both."""
