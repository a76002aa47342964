"""Grouped GEMM for decoding: groups of equal capacity; a list on the device has the number of rows that count in each.

``api``: the public function. ``shuffle``: weights in the order of AMD's matrix instructions. ``checks``: the
product of a call, and the checks of its arguments. ``torch_op``: the operator for ``torch.compile``. ``engine``
computes the product.
"""
