"""Embedders, for rewards by similarity: a server, a function, or colours alone put texts and pictures in one space."""

import http.client
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncrollout.errors import EnvError, UsageError
from asyncrollout.images import data_url
from asyncrollout.registry import load_factory
from asyncrollout_envs.video.drawing import COLOURS

Item = str | NDArray[np.uint8]
Embedder = Callable[[Sequence[Item]], Any]
"""Gives a row of numbers for each text or picture (height, width, 3)."""

ALLOW_IMPORT = "ASYNCROLLOUT_ALLOW_IMPORT"
"""An import path runs code, and may come from a config of somebody else: the environment must allow it."""

_LARGEST_REPLY, _PART = 64 * 2**20, 2**16  # bytes
_PALETTE = COLOURS | {
    "cyan": (40, 200, 210),
    "pink": (245, 150, 190),
    "brown": (120, 75, 40),
    "white": (250, 250, 250),
    "grey": (128, 128, 128),
    "black": (10, 10, 10),
}
_SAME = {"gray": "grey", "violet": "purple", "magenta": "pink"}
_COLOURLESS = ("white", "grey", "black")
_FAINT = 0.05  # what a pixel without colour counts; most of a picture is background
_LEAST_COLOUR = 40  # difference of a pixel's values
_WORD = re.compile(r"[a-z]+")
_BITS = 4  # of each of a pixel's three values, that are looked at


class _Vector(msgspec.Struct):
    embedding: list[float]
    index: int


class _Reply(msgspec.Struct):
    data: list[_Vector]


class EmbeddingService:
    """An OpenAI-compatible server: `POST {url}/v1/embeddings`; pictures are data URLs, and `modality` says so."""

    def __init__(self, url: str, timeout: float) -> None:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise UsageError(f"video: {url!r:.200} is not the address of an embedding service, http://host:port")
        self._url = url.rstrip("/").removesuffix("/embeddings").removesuffix("/v1") + "/v1/embeddings"
        self._timeout = timeout

    def __call__(self, items: Sequence[Item]) -> NDArray[np.float64]:
        rows: dict[int, list[float]] = {}
        for modality, kind in (("text", str), ("image", np.ndarray)):
            places = [place for place, item in enumerate(items) if isinstance(item, kind)]
            if places:
                rows.update(zip(places, self._ask([items[place] for place in places], modality), strict=True))
        return np.array([rows[place] for place in range(len(items))])

    def _ask(self, items: Sequence[Item], modality: str) -> list[list[float]]:
        texts = [item if isinstance(item, str) else data_url(item) for item in items]
        body = {"model": "default", "input": texts, "encoding_format": "float", "modality": modality}
        headers = {"Content-Type": "application/json"}
        request = Request(self._url, json.dumps(body).encode(), headers)  # noqa: S310 (http or https, see above)
        try:
            with urlopen(request, timeout=self._timeout) as response:  # noqa: S310
                content = _read_all(response, time.monotonic() + self._timeout)
            reply = msgspec.json.decode(content, type=_Reply)
        except (URLError, OSError, http.client.HTTPException, ValueError, msgspec.DecodeError) as error:
            raise EnvError(f"embedding service {self._url}: {getattr(error, 'reason', None) or error}") from None
        rows = [vector.embedding for vector in sorted(reply.data, key=lambda vector: vector.index)]
        if len(rows) != len(items):
            raise EnvError(f"embedding service {self._url}: {len(rows)} embeddings for {len(items)} inputs")
        return rows


def _read_all(response: http.client.HTTPResponse, deadline: float) -> bytes:
    """The body; a server that takes too long or sends too much is cut off."""
    content = b""
    while part := response.read1(_PART):
        content += part
        if len(content) > _LARGEST_REPLY or time.monotonic() > deadline:
            raise TimeoutError("its reply has no end")
    return content


def embed_colours(items: Sequence[Item]) -> NDArray[np.float64]:
    """The built-in embedder: how much of each colour that has a name a picture has, and which of them a text names.

    It knows nothing but colours. A text that names none is as near to any picture as to any other.
    """
    return np.array([_colours_named(item) if isinstance(item, str) else _colours_seen(item) for item in items])


def choose_embedder(chosen: str | Embedder, timeout: float) -> Embedder:
    """By "colours", the address of a service, a function, or the import path of one."""
    if callable(chosen):
        return chosen
    if chosen == "colours":
        return embed_colours
    if isinstance(chosen, str) and "://" in chosen:
        return EmbeddingService(chosen, timeout)
    if not isinstance(chosen, str) or ":" not in chosen:
        raise UsageError(
            f"video: embedder={chosen!r:.200} is not 'colours', http://host:port, a function or 'module:function'"
        )
    if os.environ.get(ALLOW_IMPORT, "0") in ("", "0"):
        raise UsageError(
            f"video: embedder={chosen!r:.200} is an import path, which runs that module's code: allow it with "
            f"{ALLOW_IMPORT}=1, or pass the function itself"
        )
    return load_factory(chosen)


def similarity(embed: Embedder, query: str, pictures: Sequence[NDArray[np.uint8]]) -> float:
    """The mean cosine between a text and pictures."""
    rows = np.asarray(embed([query, *pictures]), dtype=np.float64)
    if rows.ndim != 2 or len(rows) != 1 + len(pictures) or not np.isfinite(rows).all():
        raise EnvError(f"the embedder gave no finite row for each of {1 + len(pictures)} inputs, but {rows.shape}")
    lengths = np.linalg.norm(rows, axis=1)
    lengths[lengths == 0] = 1.0
    unit = rows / lengths[:, None]
    return float((unit[1:] @ unit[0]).mean())


def _colours_named(text: str) -> NDArray[np.float64]:
    words = {_SAME.get(word, word) for word in _WORD.findall(text.lower())}
    return np.array([float(colour in words) for colour in _PALETTE])


def _colours_seen(picture: NDArray[np.uint8]) -> NDArray[np.float64]:
    red, green, blue = (picture.reshape(-1, 3) >> (8 - _BITS)).astype(np.intp).T
    nearest = _nearest_names()[red, green, blue]
    weights = [_FAINT if name in _COLOURLESS else 1.0 for name in _PALETTE]
    seen: NDArray[np.float64] = np.bincount(nearest, minlength=len(_PALETTE)) * np.array(weights)
    return seen


@cache
def _nearest_names() -> NDArray[np.intp]:
    """For each colour, which of the palette is the nearest to it; what is nearly grey is nothing else."""
    levels = (np.arange(2**_BITS) + 0.5) * 2 ** (8 - _BITS)
    colours = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), axis=-1)
    is_grey = np.ptp(colours, axis=-1) < _LEAST_COLOUR
    away = [
        np.where(is_grey & (name not in _COLOURLESS), np.inf, ((colours - named) ** 2).sum(axis=-1))
        for name, named in _PALETTE.items()
    ]
    nearest: NDArray[np.intp] = np.stack(away).argmin(axis=0)
    return nearest
