"""The catalogue: products and goals in an SQLite database, found by their words."""

import random
import re
import sqlite3
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

CATEGORY_SEPARATOR = "\u203a"
MOST_RESULTS = 50
MOST_WORDS = 24  # of a search; a title has about as many, and each costs time

_LONGEST_SEARCH = 2_000  # characters
_LONGEST_WORD = 40
_WORD = re.compile(r"[^\W_]+")
_ORDER = 233
_COMPLETE = 1

_TABLES = """
CREATE TABLE product (
    id INTEGER PRIMARY KEY, asin TEXT NOT NULL UNIQUE, title TEXT NOT NULL, price TEXT NOT NULL, content BLOB NOT NULL
);
CREATE TABLE goal (id INTEGER PRIMARY KEY, content BLOB NOT NULL);
CREATE VIRTUAL TABLE words USING fts5 (text, content='', tokenize='porter unicode61');
CREATE TABLE gain (word TEXT PRIMARY KEY, ids BLOB NOT NULL, gains BLOB NOT NULL) WITHOUT ROWID;
"""
_GAINS = "SELECT rowid, -bm25(words) FROM words WHERE words MATCH ? ORDER BY rowid"

Gains = tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]
"""Ids of products, and what a word adds to the score of each."""


class Product(msgspec.Struct, frozen=True):
    """What is sold. `price_tag` is what a customer sees, of a range too; `price` is what counts."""

    asin: str
    title: str
    query: str
    category: str
    price: float
    price_tag: str
    description: str = ""
    features: list[str] = []
    reviews: list[str] = []
    attributes: list[str] = []
    options: dict[str, list[str]] = {}

    def option_of(self, value: str) -> str | None:
        """The name of the option that has this value."""
        return next((name for name, values in self.options.items() if value in values), None)


class Goal(msgspec.Struct, frozen=True):
    """What a customer wants, told by `instruction`, and the product that it was made from."""

    asin: str
    title: str
    query: str
    category: str
    instruction: str
    attributes: list[str]
    options: list[str]
    price_upper: float


class Listing(msgspec.Struct, frozen=True):
    """A product in a list of results."""

    asin: str
    title: str
    price_tag: str


class Source(Protocol):
    """Where a catalogue comes from."""

    def key(self) -> str:
        """Says what is in it: two sources with the same key hold the same."""

    def stock(self) -> Iterator[tuple[Product, list[Goal]]]:
        """Every product, with the goals that it is the answer to."""


class Catalogue:
    """A filled database. Envs in threads may share it; its connection is closed when the last of them lets it go."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._products = self._count("SELECT count(*) FROM product")
        self.goals = self._count("SELECT count(*) FROM goal")
        weakref.finalize(self, connection.close)

    def goal(self, index: int) -> Goal:
        return msgspec.msgpack.decode(self._content("SELECT content FROM goal WHERE id = ?", index), type=Goal)

    def product(self, asin: str) -> Product:
        return msgspec.msgpack.decode(self._content("SELECT content FROM product WHERE asin = ?", asin), type=Product)

    def search(self, text: str) -> tuple[Listing, ...]:
        """The best products by BM25 for any of the words, equal ones in the catalogue's order."""
        words = dict.fromkeys(_WORD.findall(text[:_LONGEST_SEARCH].lower()))
        scores = np.zeros(self._products)
        for ids, gains in self._gains([word for word in words if len(word) <= _LONGEST_WORD][:MOST_WORDS]):
            scores[ids] += gains
        found = np.flatnonzero(scores)
        if len(found) > MOST_RESULTS:
            least = np.partition(scores[found], -MOST_RESULTS)[-MOST_RESULTS]
            found = found[scores[found] >= least]
        best = found[np.argsort(-scores[found], kind="stable")][:MOST_RESULTS].tolist()
        query = f"SELECT id, asin, title, price FROM product WHERE id IN ({_marks(best)})"  # noqa: S608
        listings = {place: Listing(*row) for place, *row in self._rows(query, *best)}
        return tuple(listings[place] for place in best)

    def _gains(self, words: list[str]) -> Iterator[Gains]:
        """What the words add to the scores of products."""
        unknown = set(words)
        query = f"SELECT word, ids, gains FROM gain WHERE word IN ({_marks(words)}) ORDER BY word"  # noqa: S608
        for word, ids, gains in self._rows(query, *words):
            unknown.remove(word)
            yield np.frombuffer(ids, np.int32), np.frombuffer(gains, np.float64)
        if unknown:  # they may be other forms of words, such as a plural
            yield _as_gains(self._rows(_GAINS, _any(sorted(unknown))))

    def _content(self, query: str, key: Any) -> bytes:
        ((content,),) = self._rows(query, key)
        return bytes(content)

    def _count(self, query: str) -> int:
        ((count,),) = self._rows(query)
        return int(count)

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._connection.execute(query, values).fetchall()


def fill(connection: sqlite3.Connection, source: Source) -> None:
    """Put a source's stock into an empty database."""
    connection.isolation_level = None
    connection.execute("PRAGMA journal_mode = OFF")  # a database that was not completed is thrown away
    connection.execute("PRAGMA synchronous = OFF")
    connection.executescript(_TABLES)
    connection.execute("BEGIN")
    goals: list[Goal] = []
    words: set[str] = set()
    for place, (product, wanted) in enumerate(source.stock()):
        row = (place, product.asin, product.title, product.price_tag, msgspec.msgpack.encode(product))
        connection.execute("INSERT INTO product VALUES (?, ?, ?, ?, ?)", row)
        text = _text(product)
        connection.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (place, text))
        words.update(_WORD.findall(text.lower()))
        goals += wanted
    random.Random(_ORDER).shuffle(goals)  # noqa: S311 (WebShop's own order: a goal has the index that it has there)
    rows = ((place, msgspec.msgpack.encode(goal)) for place, goal in enumerate(goals))
    connection.executemany("INSERT INTO goal VALUES (?, ?)", rows)
    connection.execute("INSERT INTO words (words) VALUES ('optimize')")
    _add_gains(connection, words)
    connection.execute(f"PRAGMA user_version = {_COMPLETE}")
    connection.execute("COMMIT")


def _add_gains(connection: sqlite3.Connection, words: Iterable[str]) -> None:
    """Ask FTS5 for the score of every word beforehand.

    BM25 adds up what each word gives, and FTS5 takes 2 microseconds for each product that has it: too long for a search
    of ten words, of which some are in half of all products.
    """
    for word in sorted(words):
        ids, gains = _as_gains(connection.execute(_GAINS, (_any([word]),)).fetchall())
        connection.execute("INSERT INTO gain VALUES (?, ?, ?)", (word, ids.tobytes(), gains.tobytes()))


def _as_gains(rows: list[tuple[int, float]]) -> Gains:
    return np.array([row[0] for row in rows], np.int32), np.array([row[1] for row in rows], np.float64)


def is_complete(connection: sqlite3.Connection) -> bool:
    ((version,),) = connection.execute("PRAGMA user_version").fetchall()
    return bool(version == _COMPLETE)


def _text(product: Product) -> str:
    """The words by which a product is found; of its features the first only, as in WebShop."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options.items())
    return " ".join([product.title, product.description, *product.features[:1], options])


def _any(words: list[str]) -> str:
    return " OR ".join(f'"{word}"' for word in words)


def _marks(values: list[Any]) -> str:
    return ", ".join("?" * len(values))
