"""Workflows that run as they are, for people, tests and the editor's templates. Data only."""
