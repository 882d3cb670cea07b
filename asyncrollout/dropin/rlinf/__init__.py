"""RLinf's interfaces for evaluations: in a trainer, change the import line."""

from asyncrollout.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
