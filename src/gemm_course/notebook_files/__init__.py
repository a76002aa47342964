"""Where notebooks are, stubs made of solutions, and the answer's cell of a hand-in."""
