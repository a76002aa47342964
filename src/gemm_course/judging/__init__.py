"""The trusted side of a check: what an answer's process returned becomes results, feedback and pictures."""
