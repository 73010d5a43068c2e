"""Declares the options of commands and servers, and reads the settings of the environment."""
