"""`python -m asyncrollout_envs.video DIRECTORY`: make clips with questions and answers to play the `video` env on."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from asyncrollout.errors import UsageError
from asyncrollout_envs.video.generate import DEFAULT_CLIPS, DEFAULT_SEED, make_videos


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the clips, print where they are, and return the exit code."""
    parser = argparse.ArgumentParser("python -m asyncrollout_envs.video", description=__doc__)
    parser.add_argument("directory", type=Path, help="a new or empty directory, or one made by this command")
    parser.add_argument("--clips", type=int, default=DEFAULT_CLIPS, help="number of clips (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="seed of the clips (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    try:
        config = make_videos(chosen.directory, clips=chosen.clips, seed=chosen.seed)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"Wrote {chosen.clips} clips, with questions and moments to find: {config}")
    print(f"Next: asyncrollout check-env video {shlex.quote(f'video_data_config_path={config}')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
