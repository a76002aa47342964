"""Code that lessons show, run and draw from: sources, simulations, and numbers computed from records."""
