"""Catalogues on disk, built once, and shared by all envs of a process."""

import os
import sqlite3
import tempfile
import threading
from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path
from weakref import WeakValueDictionary

from asyncrollout_envs.caching import alone, cache_directory, short_digest
from asyncrollout_envs.webshop.catalogue import Catalogue, Source, fill, is_complete

_CHECKED = 64 * 2**20  # bytes; what is larger takes too long to read at every start
_PREFIX, _PARTIAL = "webshop-", ".partial"
_CODE = ("catalogue.py", "generate.py", "original.py", "words.py")

_lock = threading.Lock()
_open: WeakValueDictionary[str, Catalogue] = WeakValueDictionary()


def open_catalogue(source: Source) -> Catalogue:
    """The process's one catalogue of a source; built, and kept in the cache directory, the first time ever."""
    name = _file_name(source)
    with _lock:
        catalogue = _open.get(name)
        if catalogue is None:
            catalogue = _open[name] = Catalogue(_connect(name, source))
        return catalogue


def keep_catalogue(source: Source) -> Path:
    """The file in the cache directory, built if there is none; OSError or sqlite3.OperationalError if it cannot be."""
    path = cache_directory() / _file_name(source)
    connection = _open_file(path) or _build(path, source)
    if connection is None:
        raise OSError(f"{path} was written, but cannot be read")
    connection.close()
    return path


def _connect(name: str, source: Source) -> sqlite3.Connection:
    try:
        path = cache_directory() / name
        connection = _open_file(path)
        if connection is None:
            connection = _build(path, source)
    except (OSError, sqlite3.OperationalError):  # nowhere to write, or a full disk
        connection = None
    if connection is None:
        with ExitStack() as undo:
            connection = undo.enter_context(closing(sqlite3.connect(":memory:", check_same_thread=False)))
            fill(connection, source)
            undo.pop_all()
    return connection


def _open_file(path: Path) -> sqlite3.Connection | None:
    """A connection that can only read; None if there is no sound database."""
    if not path.exists():
        return None
    # The file never changes, so that SQLite need not lock it: a new one takes its place.
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False)
    try:
        if is_complete(connection) and (path.stat().st_size > _CHECKED or _is_whole(connection)):
            return connection
    except sqlite3.DatabaseError:  # not a database at all
        pass
    connection.close()
    return None


def _is_whole(connection: sqlite3.Connection) -> bool:
    return connection.execute("PRAGMA quick_check(1)").fetchall() == [("ok",)]


def _build(path: Path, source: Source) -> sqlite3.Connection | None:
    """Make the file, unless another process does, and open it; a rename puts it in its place at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with alone(path.parent) as is_alone:
        connection = _open_file(path)
        if connection is not None:
            return connection
        if is_alone:  # whoever began one of these was killed
            for left in path.parent.glob(f"{_PREFIX}*{_PARTIAL}"):
                left.unlink(missing_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=_PREFIX, suffix=_PARTIAL)
        os.close(descriptor)
        own = Path(name)
        try:
            with closing(sqlite3.connect(own)) as filled:
                fill(filled, source)
            own.replace(path)
        finally:
            own.unlink(missing_ok=True)
        return _open_file(path)


def _file_name(source: Source) -> str:
    return f"{_PREFIX}{short_digest(_code(), source.key().encode())}.sqlite"


@cache
def _code() -> bytes:
    """The code that makes a catalogue, so that a change of it makes a new file."""
    return b"".join(Path(__file__).with_name(name).read_bytes() for name in _CODE)
