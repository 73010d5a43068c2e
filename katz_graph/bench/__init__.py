"""Runs the benches of `katz bench`. Only the command line and the tests of benches import it."""
