"""Device code, one lesson per module."""
