"""The `__main__` module of a worker: it has the identity of the parent's, and never runs the parent's script."""

import importlib.machinery
import os
import sys
import types
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class MainModule:
    """What a worker takes over from its parent's main module; what is defined there travels later, as it is used."""

    argv: list[str]
    file: str | None
    package: str | None
    spec_name: str | None
    doc: str | None

    @classmethod
    def of_this_process(cls) -> "MainModule":
        main = sys.modules.get("__main__")
        spec = getattr(main, "__spec__", None)
        return cls(
            argv=[str(argument) for argument in getattr(sys, "argv", [])],  # an embedding program may have none
            file=_text(getattr(main, "__file__", None)),
            package=_text(getattr(main, "__package__", None)),
            spec_name=_text(getattr(spec, "name", None)),
            doc=_text(getattr(main, "__doc__", None)),
        )

    def install(self) -> None:
        """Be this process's `__main__`, which anyio has deleted. Packages such as dill import it when they load."""
        main: Any = types.ModuleType("__main__", self.doc)
        if self.file is not None:
            main.__file__ = self.file
        main.__package__ = self.package
        if self.spec_name is not None:  # as of `python -m`; multiprocessing, too, goes by its name
            main.__spec__ = importlib.machinery.ModuleSpec(self.spec_name, None, origin=self.file)
        main.__builtins__ = sys.modules["builtins"]
        sys.modules["__main__"] = main
        sys.argv = list(self.argv)
        _workers.add(os.getpid())


_workers: set[int] = set()
"""This process, if it is a worker; a child that it forks is not."""


def is_worker() -> bool:
    return os.getpid() in _workers


def is_imported_by_child() -> bool:
    """Whether this code runs because a child process imports it: a worker of ours, or one that runs a main script.

    `multiprocessing` and `anyio.to_process`, if a program uses them itself, have each process run its main script.
    """
    process = getattr(sys.modules.get("multiprocessing.process"), "current_process", None)
    if "__main__" not in sys.modules or (process and getattr(process(), "_inheriting", False)):
        return True
    frame = sys._getframe() if is_worker() else None  # noqa: SLF001 (the only way to see an import)
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
