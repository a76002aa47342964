"""Epilogues: from accumulators to C, a part for each step; and zeros for rows of C without a product."""
