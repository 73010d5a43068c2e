"""The parts of `katz bench gpu`: one module with a `run` each."""
