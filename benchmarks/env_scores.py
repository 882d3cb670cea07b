"""What an expert and an honest random player earn in every shipped env, with 95% intervals, as a table in Markdown.

    python benchmarks/env_scores.py [--only FORM ...] [--episodes 100] [--split test]

The random player gives one valid action per reply, drawn from those that the task names; see `tests/env_players.py`.
An episode ends as the env says, at the latest after 1,000 actions.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from asyncrollout import stats
from tests.env_players import Played, expert, honest, play
from tests.shipped import FORMS

LONGEST = 1000
HEAD = ("form", "expert: reward", "expert: success", "random player: reward", "random player: success", "n")


def interval(found: stats.Estimate) -> str:
    """A mean with its interval; none if all values are equal."""
    low, high = (found.mean, found.mean) if found.low is None or found.high is None else (found.low, found.high)
    return f"{found.mean:.2f} ({low:.2f} to {high:.2f})"


def cells(episodes: Sequence[Played]) -> tuple[str, str]:
    rewards = stats.mean([episode.reward for episode in episodes])
    successes = [float(episode.success) for episode in episodes]
    return interval(rewards), interval(stats.share(successes, len(successes)))


async def row(form: str, count: int, split: str) -> str:
    name, kwargs = FORMS[form]
    found = [
        await play(name, {**kwargs, "split": split}, player, range(count), knows=player is expert, actions=LONGEST)
        for player in (expert, honest)
    ]
    return f"| `{form}` | {' | '.join(cell for episodes in found for cell in cells(episodes))} | {count} |"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=FORMS, default=[*FORMS])
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--split", choices=("train", "val", "test"), default="test")
    given = parser.parse_args()
    print(f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|", sep="\n")
    for form in given.only:
        print(await row(form, given.episodes, given.split), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
