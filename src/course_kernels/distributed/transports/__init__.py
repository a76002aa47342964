"""Ways between ranks."""
