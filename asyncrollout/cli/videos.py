"""Videos to play the `video` env on."""

import shlex
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from asyncrollout.cli.app import WHOLE, Told, program
from asyncrollout.cli.terminal.progress import run_with_bar
from asyncrollout.registry import load_factory

_MAKE = "asyncrollout_envs.video:make_videos"  # the core does not import the envs that it comes with


async def make_videos(
    directory: Annotated[Path, Parameter(help="Where to; a new or empty directory, or one that this command made.")],
    /,
    *,
    clips: Annotated[int, WHOLE, Parameter(help="How many; 24 if not given.")] = 24,
    seed: Annotated[int, WHOLE, Parameter(help="Other clips for each; 0 if not given.")] = 0,
    output: Told,
) -> None:
    """Make some."""
    make = partial(load_factory(_MAKE), directory, clips=clips, seed=seed)
    config = await run_with_bar("videos", lambda tell: make(told=tell), output)
    output.record({"config": str(config), "clips": clips, "seed": seed})
    output.show(f"Wrote {clips} clips, with questions and moments to find: {config}")
    option = shlex.quote(f"video_data_config_path={config}")
    output.say(f"Next: {program()} check-env video {option}")
