"""Grouped GEMM for decoding: groups of equal capacity, of whose rows a list on the device says how many count.

``api``: the public function. ``shuffle``: weights in the order of AMD's matrix instructions. ``checks``: what a call
asks for, and whether it may. ``torch_op``: what ``torch.compile`` sees. ``engine`` computes the product.
"""
