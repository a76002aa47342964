"""Float8: quantizers, products with scales, and a layer that trains on them."""
