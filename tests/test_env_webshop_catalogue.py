"""The generated catalogue, how it is searched, and how it is kept on disk and shared."""

import fcntl
import gc
import itertools
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from asyncrollout_envs.caching import cache_directory
from asyncrollout_envs.webshop import WebShop, words
from asyncrollout_envs.webshop.cache import open_catalogue
from asyncrollout_envs.webshop.catalogue import MOST_RESULTS, Catalogue, Goal, Product, fill
from asyncrollout_envs.webshop.generate import Generated
from asyncrollout_envs.webshop.reward import alike, options_match, score

Stock = list[tuple[Product, list[Goal]]]

SEARCHES = ["running shoes", "vegan navy boots size 9", "black", "with the for and", "machine washable cotton large xl"]


@pytest.fixture(scope="module")
def stock() -> Stock:
    return list(Generated().stock())


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("ASYNCROLLOUT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that holds the catalogue, to be copied."""
    directory = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("ASYNCROLLOUT_CACHE", str(directory))
        WebShop().close()
    return directory


@pytest.fixture
def filled(cache: Path, kept: Path) -> Path:
    """The cache after a first use."""
    shutil.copytree(kept, cache)
    return cache


@pytest.fixture(scope="module")
def connection() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    fill(connection, Generated())
    return connection


@pytest.fixture(scope="module")
def catalogue(connection: sqlite3.Connection) -> Catalogue:
    return Catalogue(connection)


def test_there_is_enough_for_all_splits(stock: Stock) -> None:
    goals = [goal for _, goals in stock for goal in goals]
    assert len(stock) >= 1000
    assert len(goals) >= 3000
    assert len({product.asin for product, _ in stock}) == len({product.title for product, _ in stock}) == len(stock)
    assert len({goal.instruction for goal in goals}) == len(goals)


def test_every_goal_can_be_reached(stock: Stock) -> None:
    for product, goals in stock:
        for goal in goals:
            offered = {value for values in product.options.values() for value in values}
            assert set(goal.options) <= offered
            assert score(product, goal.options, goal) == 1.0


def test_products_are_easily_confused(stock: Stock) -> None:
    """Most of those of the same kind are wrong, and none of a goal's wishes can be left out."""
    fitting = []
    for _, goals in stock[::20]:
        for goal in goals:
            same_kind = [other for other, _ in stock if other.query == goal.query]
            chosen = [[value for value in goal.options if other.option_of(value)] for other in same_kind]
            fitting.append(
                sum(score(other, best, goal) == 1.0 for other, best in zip(same_kind, chosen, strict=True))
                / len(same_kind)
            )
    assert max(fitting) < 0.3
    assert sum(fitting) / len(fitting) < 0.1


def test_no_two_words_stand_for_each_other(stock: Stock) -> None:
    for family in words.FAMILIES:
        for one, other in itertools.combinations(family.traits + family.parts, 2):
            assert not alike(one, other)
        values = [value for values in family.options.values() for value in values]
        for one, other in itertools.combinations(values, 2):
            assert not options_match(one, other)
    for product, _ in stock:
        (family,) = (family for family in words.FAMILIES if product.query in family.kinds)
        told = " ".join([product.title, product.description, *product.features]).lower()
        assert not [word for word in family.traits + family.parts if word in told and word not in product.attributes]


@pytest.mark.parametrize("text", [*SEARCHES, "shoe", "waterproofing boot", "HIKING Boots!"])
def test_a_search_ranks_as_fts5_does(connection: sqlite3.Connection, catalogue: Catalogue, text: str) -> None:
    expression = " OR ".join(f'"{word}"' for word in text.lower().strip("!").split())
    expected = connection.execute(
        "SELECT asin, round(bm25(words), 6) AS score FROM words JOIN product ON product.id = words.rowid "
        "WHERE words MATCH ? ORDER BY bm25(words), words.rowid",
        (expression,),
    ).fetchall()
    found = [one.asin for one in catalogue.search(text)]
    scores = dict(expected)
    assert found
    assert len(found) == min(len(expected), MOST_RESULTS)
    assert [scores[asin] for asin in found] == [score for _, score in expected[: len(found)]]


class Twins:
    """Products that only their numbers tell apart."""

    def key(self) -> str:
        return "twins"

    def stock(self) -> Iterator[tuple[Product, list[Goal]]]:
        for number in range(70):
            product = Product(f"B{number}", "A lamp", "lamps", "Light", price=1.0, price_tag="$1")
            yield product, []


def test_equal_products_come_in_the_order_of_the_catalogue() -> None:
    connection = sqlite3.connect(":memory:")
    fill(connection, Twins())
    found = Catalogue(connection).search("lamps")
    assert [one.asin for one in found] == [f"B{number}" for number in range(MOST_RESULTS)]


@pytest.mark.parametrize("text", ["", "  ", "zzzzzz", "\ud800", "\x00", '"', "* ^ ( :", "9" * 5000, "_", "\u00b2"])
def test_odd_searches_find_nothing(catalogue: Catalogue, text: str) -> None:
    assert catalogue.search(text) == ()


def test_a_long_search_looks_at_its_first_words(catalogue: Catalogue) -> None:
    noise = " ".join(f"zz{number}" for number in range(100_000))
    assert catalogue.search(f"hiking boots {noise}") == catalogue.search("hiking boots")


def first_page(env: WebShop) -> tuple[str, str]:
    return env.reset(seed=3)[0], env.step("search[black boots]")[0]


def played() -> tuple[str, str]:
    env = WebShop()
    try:
        return first_page(env)
    finally:
        env.close()


def test_it_is_built_once(cache: Path) -> None:
    first = played()
    (file,) = cache.iterdir()
    built = file.stat()
    assert played() == first
    assert [one.stat().st_ino for one in cache.iterdir()] == [built.st_ino]
    assert file.stat().st_mtime_ns == built.st_mtime_ns


@pytest.mark.parametrize("damage", ["garbage", "empty", "half", "zeros"])
def test_a_damaged_file_is_built_again(filled: Path, damage: str) -> None:
    first = played()
    (file,) = filled.iterdir()
    sound = file.read_bytes()
    half = len(sound) // 2
    file.write_bytes(
        {
            "garbage": b"this is no database" * 1000,
            "empty": b"",
            "half": sound[:half],
            "zeros": sound[:8192] + bytes(len(sound) - 8192),
        }[damage]
    )
    assert played() == first
    assert [one.name for one in filled.iterdir()] == [file.name]
    assert file.read_bytes() == sound


def test_without_a_place_to_write_it_is_built_in_memory(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = played()
    filled.with_name("file").write_text("not a directory")
    monkeypatch.setenv("ASYNCROLLOUT_CACHE", str(filled.with_name("file") / "cache"))
    assert played() == first


def test_the_cache_directory_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ASYNCROLLOUT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "asyncrollout"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "asyncrollout"
    monkeypatch.setenv("ASYNCROLLOUT_CACHE", "~/x")
    assert cache_directory() == tmp_path / "x"


def test_without_a_home_it_is_built_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASYNCROLLOUT_CACHE", "~nobody-of-this-name/x")
    assert played()


BLOCKED = """
import sys
from asyncrollout_envs.webshop.cache import open_catalogue

class Blocked:
    def key(self):
        return "blocked"

    def stock(self):
        print("building", flush=True)
        sys.stdin.read()
        return iter(())

open_catalogue(Blocked())
"""


@contextmanager
def builder() -> Iterator[None]:
    """A process in the middle of building a catalogue, killed at the end."""
    with subprocess.Popen([sys.executable, "-c", BLOCKED], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"building\n"
            yield
        finally:
            process.kill()


def test_what_a_killed_builder_leaves_is_removed(cache: Path) -> None:
    with builder():
        pass
    (left,) = cache.iterdir()
    (cache / "webshop-notes.txt").touch()
    (cache / "other.partial").touch()
    open_catalogue(Twins())
    names = {file.name for file in cache.iterdir()}
    assert left.name not in names
    assert names > {"webshop-notes.txt", "other.partial"}
    assert len(names) == 3


def test_without_locks_nothing_of_another_builder_is_removed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_lock(*_: object) -> None:
        raise OSError("this file system knows no locks")

    with builder():
        (partial,) = cache.iterdir()
        monkeypatch.setattr(fcntl, "flock", no_lock)
        open_catalogue(Twins())
        assert partial.exists()
        assert len(list(cache.iterdir())) == 2


def open_files(directory: Path) -> list[str]:
    links = [os.readlink(f"/dev/fd/{fd}") for fd in os.listdir("/dev/fd") if os.path.exists(f"/dev/fd/{fd}")]
    return [link for link in links if link.startswith(str(directory))]


def test_envs_share_a_catalogue_until_the_last_is_closed(filled: Path) -> None:
    one, other = WebShop(), WebShop(split="test")
    assert one.catalogue is other.catalogue
    assert len(open_files(filled)) == 1
    one.close()
    one.close()
    assert len(open_files(filled)) == 1
    other.reset(seed=0)
    other.close()
    assert open_files(filled) == []


def test_envs_that_are_forgotten_let_go_of_it(filled: Path) -> None:
    env = WebShop()
    env.reset(seed=0)
    assert len(open_files(filled)) == 1
    del env
    gc.collect()
    assert open_files(filled) == []


def test_threads_may_share_it(cache: Path) -> None:
    alone = open_catalogue(Generated())
    expected = [alone.search(text) for text in SEARCHES]
    del alone
    with ThreadPoolExecutor(8) as pool:
        catalogues = list(pool.map(lambda _: open_catalogue(Generated()), range(8)))
        assert len({id(catalogue) for catalogue in catalogues}) == 1
        found = pool.map(lambda place: [catalogues[place].search(text) for text in SEARCHES], [0, 1, 2, 3] * 20)
        assert all(results == expected for results in found)


def test_processes_may_build_it_at_once(cache: Path) -> None:
    script = (
        "from asyncrollout_envs.webshop import WebShop\n"
        "env = WebShop()\n"
        "print(env.reset(seed=3)[0], env.step('search[black boots]')[0])\n"
    )
    racing = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": str(number)},
        )
        for number in range(3)
    ]
    told = [process.communicate()[0].strip() for process in racing]
    assert [process.returncode for process in racing] == [0, 0, 0]
    assert set(told) == {" ".join(played())}
    assert len(list(cache.iterdir())) == 1
