"""Adapters to other projects, each imported by whoever uses it."""
