"""A page that is one file: its skeleton, the policy that lets nothing else in, and the data that it carries."""

import base64
import errno
import hashlib
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

from asyncrollout.report.blocks import embedded

_HERE = "asyncrollout.report"
_BEGINS = b"<!doctype html"
_EVERYWHERE = (f"{_HERE}:plots.js", f"{_HERE}:layout.js")


def skeleton(title: str, *scripts: str, asks_server: bool = False) -> tuple[str, str]:
    """The page before its data and after it. Scripts are named `package:file`, and may use what is in every page.

    Only a page that is served may ask its server for more.
    """
    style = _source(f"{_HERE}:page.css")
    script = "\n".join(map(_source, (*_EVERYWHERE, *scripts)))
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data: blob:; "
        "media-src 'self' file: blob:; base-uri 'none'; form-action 'none'"
    ) + "; connect-src 'self'" * asks_server
    escaped = "".join(f"&#{ord(char)};" for char in title)
    page = _source(f"{_HERE}:page.html")
    page = page.replace("{{policy}}", policy).replace("{{title}}", escaped).replace("{{style}}", style)
    head, tail = page.split("{{data}}")
    return head, tail.replace("{{script}}", script)


def data(name: str, content: str) -> str:
    """An element with data; `content` is as `embedded` gives it."""
    return f'<script type="application/json" id="{name}">{content}</script>\n'


def whole_page(title: str, scripts: Sequence[str], carried: dict[str, Any], *, asks_server: bool = False) -> str:
    """A page of which all data is at hand."""
    head, tail = skeleton(title, *scripts, asks_server=asks_server)
    return head + "".join(data(name, embedded(value)) for name, value in carried.items()) + tail


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A page that takes its place only when all of it is written, and never that of a file which is not a page."""
    path = path.resolve()  # a link's target is replaced, not the link
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if path.exists() and not path.is_file():  # a device, which must not become a page
        raise OSError(errno.EINVAL, "It is not a regular file")
    if path.is_file() and not _is_page_or_empty(path):
        raise FileExistsError(errno.EEXIST, "There is a file that is not a page, and is not overwritten")
    partial = path.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        with partial.open("xb") as file:
            yield file
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _is_page_or_empty(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_BEGINS)).lower() in (_BEGINS, b"")


def _source(name: str) -> str:
    package, _, file = name.partition(":")
    return (files(package) / file).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
