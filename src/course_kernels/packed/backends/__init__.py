"""The ways to compute a packed product: Triton kernels, the kernel in CuTe DSL, torch.

Each is a module with two functions: ``supports(problem, operands, out)`` says whether it computes a product, and
``plan(problem, operands, out)`` prepares a launch. ``plan.run(operands, out)`` computes it, for these operands or any
others of the same ``problem.signature``. Operands are in the form that ``checks.readable`` gives them.
"""
