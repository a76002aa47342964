"""The untrusted side of a check: the processes that run a learner's code and report what it did."""
