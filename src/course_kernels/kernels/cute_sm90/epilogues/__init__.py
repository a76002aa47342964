"""From accumulators to C, a part for each step, and zeros where C is no product."""
