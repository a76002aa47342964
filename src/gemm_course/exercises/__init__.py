"""The exercises, a folder for each: its description, its trusted examiner, and the untrusted half that runs an answer.

`examine.py` has `draw(rng)` and `examine(case, ran)`: see `judging.case.Examiner`. `run.py` is imported where an answer
runs: it knows no result and draws no input. Its `prepare(inputs, watch)` lays out one input in memory, before the
answer is loaded, and returns a function that calls the answer. `builds(answer)`, if an answer is compiled, lists the
kernels. `GIVEN` adds names to the answer's own.
"""
