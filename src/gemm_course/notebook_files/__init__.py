"""Notebook files: their places, stubs made of solutions, a learner's copies, and the cell with the answer."""
