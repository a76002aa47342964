"""The exercises: for each a TOML file, what the manifest knows, and a module, how an answer is checked."""
