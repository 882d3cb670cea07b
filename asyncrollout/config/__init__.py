"""A run's configuration: one YAML file, decoded strictly into typed structures. Names load when they are first used."""

from asyncrollout.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
