"""Which configuration serves a packed product: tables, what stands in for them, defaults."""
