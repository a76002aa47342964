"""Measured configurations of the packed products, one JSON file for each architecture; ``course tune`` writes them."""
