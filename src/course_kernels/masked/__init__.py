"""Grouped GEMM for decoding: groups of equal capacity, of whose rows a list on the device says how many count.

``api``: the public function. ``shuffle``: weights in the order of AMD's matrix instructions. ``problem``: what a call
asks for, and checks of it. ``execute``: from a call to a launch. ``launch_arguments`` and ``launch``: the Triton
kernel. ``hopper``: the kernel in CuTe DSL. ``torch_loop``: torch alone. ``torch_op``: what ``torch.compile`` sees.
"""
