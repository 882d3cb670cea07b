"""VAGEN's interfaces: in a trainer, change the import line.

Names load when they are first used: a worker that runs the trainer's script again needs no HTTP client.
"""

from asyncrollout.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
