"""The trusted side of a check: what an answer's process returned becomes a verdict, messages and pictures."""
