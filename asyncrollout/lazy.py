"""Names of a package that load when they are first used, listed once, in the package's `__init__.pyi`."""

import ast
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

_Attached = tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]


def attach(package: str) -> _Attached:
    """`__getattr__`, `__dir__` and `__all__` for a package, as its stub lists them.

    Type checkers and people read the same list. A worker process pays for the modules it uses and no others.
    """
    stub = pkgutil.get_data(package, "__init__.pyi")  # by the package's own loader: it may be in a zip file
    assert stub is not None
    listed = ast.parse(stub).body
    homes = {
        name.asname or name.name: (statement.module or "", name.name)
        for statement in listed
        if isinstance(statement, ast.ImportFrom)
        for name in statement.names
    }
    own = [ast.unparse(statement.target) for statement in listed if isinstance(statement, ast.AnnAssign)]
    names = sorted([*homes, *own])

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = homes[name]
        if module == package:  # a module of the package itself
            return importlib.import_module(f"{package}.{attribute}")
        return getattr(importlib.import_module(module), attribute)

    return get, lambda: [*names], names
