"""Build a catalogue ahead of time: `python -m asyncrollout_envs.webshop DATA_PATH`."""

import argparse
import sqlite3
import sys
from collections.abc import Iterator

from asyncrollout.errors import UsageError
from asyncrollout_envs.webshop.cache import keep_catalogue
from asyncrollout_envs.webshop.catalogue import Goal, Product
from asyncrollout_envs.webshop.original import Original

_TOLD_EVERY = 10_000  # products


class _Told(Original):
    """Tells on stderr how far it is."""

    def stock(self) -> Iterator[tuple[Product, list[Goal]]]:
        _tell("reading the files")
        count = 0
        for count, item in enumerate(super().stock(), start=1):
            yield item
            if count % _TOLD_EVERY == 0:
                _tell(f"{count} products")
        _tell(f"{count} products in all; their words are next")


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser("python -m asyncrollout_envs.webshop", description="Build WebShop's catalogue.")
    parser.add_argument("data_path", help="the env's data_path: the directory of WebShop's files, or that of products")
    parser.add_argument(
        "--human-goals", action=argparse.BooleanOptionalAction, default=True, help="the env's human_goals"
    )
    given = parser.parse_args()
    try:
        print(keep_catalogue(_Told(given.data_path, human_goals=given.human_goals)))
    except (UsageError, OSError, sqlite3.OperationalError) as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    main()
