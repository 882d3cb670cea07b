"""Episodes as MP4 files. Names load when they are first used: beside an env, only its camera is needed."""

from asyncrollout.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
