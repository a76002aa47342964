"""The trusted side of a check: it turns the results of an answer's process into a verdict, messages and pictures."""
