"""Measured configurations of the packed products, one JSON file for each architecture, by ``course tune --table``."""
