"""What runs answers, one module for each exercise: nothing here knows a result, or draws an input.

``prepare(inputs, watch)`` lays out one input in memory, before the answer is loaded, and returns a function that calls
the answer. ``builds(answer)``, where an exercise's answer is compiled, says what. ``GIVEN`` are further names for it.
"""
