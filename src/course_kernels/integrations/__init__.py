"""Other libraries that run on this one. Each module imports the library that it is named after; this one none."""
