"""Environments of the tests, which workers import by their path."""
