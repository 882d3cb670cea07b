"""The data in a page: JSON that nothing can break out of, and trajectories in compressed blocks."""

import base64
import re
import zlib
from collections.abc import Callable
from typing import Any

import msgspec

_BLOCK_BYTES = (
    256 * 1024
)  # before compression; some hundred short trajectories, and a few hundredths of a second to open
_LONGEST_TEXT = 200_000
_LONGEST_WHEN_FULL = 2_000
_MOST_BYTES = 400_000_000
_MOST_PICTURES = 60_000_000
_PICTURE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+\Z")
_HAS_PICTURES = b'"pictures":["'
_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def embedded(value: Any) -> str:
    """JSON for a script element: no text in it can end the element or start another."""
    return msgspec.json.encode(value).decode().translate(_ESCAPES)


class Blocks:
    """Collects trajectories; each full block is written at once, so that a report of any size needs little memory.

    Long texts are shortened, more so when there are many: the files of the run have all of them.
    """

    def __init__(self, write: Callable[[int, str], object]) -> None:
        self._write = write
        self._waiting: list[bytes] = []
        self._size = 0
        self._total = self._pictures = 0
        self.number = 0
        """The number of the block for the next trajectory."""
        self.clipped = 0
        """How many texts and images are left out or shortened."""

    def add(self, uid: str, shown: dict[str, Any]) -> None:
        encoded = msgspec.json.encode(shown)
        if len(encoded) > self._longest or _HAS_PICTURES in encoded:
            encoded = msgspec.json.encode(self._fitted(shown))
        self._waiting.append(msgspec.json.encode(uid) + b":" + encoded)
        self._size += len(encoded)
        self._total += len(encoded)

    def end_group(self) -> None:
        """Close the block if it is full; the members of a group stay in one block."""
        if self._size >= _BLOCK_BYTES:
            self.flush()

    def flush(self) -> None:
        if not self._waiting:
            return
        content = b"{" + b",".join(self._waiting) + b"}"
        self._write(self.number, base64.b64encode(zlib.compress(content, level=4)).decode("ascii"))
        self._waiting, self._size = [], 0
        self.number += 1

    def _fitted(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._fitted_text(value)
        if isinstance(value, dict):
            return {
                key: self._fitted_pictures(item) if key == "pictures" else self._fitted(item)
                for key, item in value.items()
            }
        return [self._fitted(item) for item in value] if isinstance(value, list) else value

    @property
    def _longest(self) -> int:
        return _LONGEST_TEXT if self._total < _MOST_BYTES else _LONGEST_WHEN_FULL

    def _fitted_text(self, text: str) -> str:
        longest = self._longest
        if len(text) <= longest:
            return text
        self.clipped += 1
        head, tail = text[: longest * 3 // 4], text[-longest // 4 :]
        return f"{head}\n[... {len(text) - longest:,} characters omitted ...]\n{tail}"

    def _fitted_pictures(self, urls: list[str]) -> list[str | None]:
        """Images as they are; None for those left out."""
        return [url if self._has_room(url) else None for url in urls]

    def _has_room(self, url: str) -> bool:
        if self._pictures + len(url) > _MOST_PICTURES or not _PICTURE.match(url):
            self.clipped += 1
            return False
        self._pictures += len(url)
        return True
