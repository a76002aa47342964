"""Measuring: rows, providers, timing, records, and the tuner."""
