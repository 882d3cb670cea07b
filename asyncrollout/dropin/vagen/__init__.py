"""VAGEN's interfaces: in a trainer, change the import line. The modules, from a service's call to the game:

service        `EnvService` and its kinds: batches of environments by id; client: the same over HTTP
registered     `REGISTERED_ENV`: VAGEN's environments by name, and yours beside them; allowed_envs: of those, a server's
configs        their options, with VAGEN's names and defaults
hosting        an environment where it lives, in a worker
envs           its classes, for code that runs one itself; video: Video-MTR's
games          Sokoban and FrozenLake by VAGEN's rules
prompts        ... what models read
replies        ... and how what they write is read

Names load when they are first used: a worker needs no HTTP client.
"""

from asyncrollout.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
