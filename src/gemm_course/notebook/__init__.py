"""In a notebook: `check`, `hint` and `solution`; and the notebooks themselves: where they are, copies, cells, stubs."""
