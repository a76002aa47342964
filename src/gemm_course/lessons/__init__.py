"""Code that lessons show and run."""
