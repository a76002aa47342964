"""The functions `check`, `hint` and `solution` for notebooks; and the notebooks' places, copies, cells and stubs."""
