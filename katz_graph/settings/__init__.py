"""Declares the options of commands and servers, and reads settings from the environment."""
