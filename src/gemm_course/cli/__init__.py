"""The `course` command, one file a verb."""
