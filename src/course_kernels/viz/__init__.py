"""The course's figures: each function takes data and returns a matplotlib Figure."""
