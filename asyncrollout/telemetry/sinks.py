"""Where figures go: a file, or a program that draws curves. A sink of your own is any object with `write`."""

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from asyncrollout.errors import MissingExtraError, UsageError

SinkName = Literal["tensorboard", "wandb", "trackio"]

METRICS = "metrics.jsonl"
"""In a run's directory."""

_PROJECT = "asyncrollout"


class Sink(Protocol):
    """Takes numbers by name, of which `at` is the time in seconds since 1970.

    It may block, since it runs in a thread of its own. If there is a `close()`, that is called at the end.
    """

    def write(self, figures: Mapping[str, float]) -> None: ...


class JsonLines:
    """A file with a JSON object on each line, such as `metrics.jsonl`; what is there already stays."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, figures: Mapping[str, float]) -> None:
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(figures) + b"\n")


class TensorBoard:
    """An event file in a directory; its steps are batches."""

    def __init__(self, directory: Path) -> None:
        try:
            from tensorboard.summary import Writer  # noqa: PLC0415 (optional, and slow to load)
        except ImportError as error:
            raise _missing("tensorboard") from error
        self._writer = Writer(str(directory))

    def write(self, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            if name != "at":
                self._writer.add_scalar(name, value, int(figures["batches"]), wall_time=figures["at"])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Tracker:
    """A run of W&B, trackio, or whatever else has `log(figures)`; it is finished at the end only if it is `owned`."""

    def __init__(self, run: Any, *, owned: bool = False) -> None:
        self._run = run
        self._owned = owned

    def write(self, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures))

    def close(self) -> None:
        if self._owned:
            self._run.finish()


def open_sinks(names: Sequence[SinkName], directory: Path, run_id: str, settings: dict[str, Any]) -> list[Sink]:
    """Sinks for a run in its directory; a run that is resumed has the same id, and goes on in them. May take seconds.

    `WANDB_PROJECT`, `WANDB_MODE`, `TRACKIO_DIR` and their like are obeyed.
    """
    return [_open(name, directory, run_id, settings) for name in dict.fromkeys(names)]


def _open(name: SinkName, directory: Path, run_id: str, settings: dict[str, Any]) -> Sink:
    if name == "tensorboard":
        return TensorBoard(directory / "tensorboard")
    try:
        return _open_wandb(directory, run_id, settings) if name == "wandb" else _open_trackio(run_id, settings)
    except MissingExtraError:
        raise
    except Exception as error:
        raise UsageError(f"metrics: {name} cannot be opened: {type(error).__name__}: {error}") from error


def _open_wandb(directory: Path, run_id: str, settings: dict[str, Any]) -> Sink:
    try:
        import wandb  # noqa: PLC0415 (optional, and slow to load)
    except ImportError as error:
        raise _missing("wandb") from error
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT") or _PROJECT,
        id=run_id,
        name=directory.name,
        dir=str(directory),
        config=settings,
        resume="allow",
        settings=wandb.Settings(console="off"),  # the live table is nothing to send
    )
    run.define_metric("*", step_metric="batches")
    return Tracker(run, owned=True)


def _open_trackio(run_id: str, settings: dict[str, Any]) -> Sink:
    try:
        import trackio  # noqa: PLC0415 (optional, and slow to load)
    except ImportError as error:
        raise _missing("trackio") from error
    for name, module in [*sys.modules.items()]:  # it has a word to say, and stdout is for results
        if name.partition(".")[0] == "trackio":
            vars(module)["print"] = partial(print, file=sys.stderr)
    return Tracker(trackio.init(project=_PROJECT, name=run_id, config=settings, resume="allow"), owned=True)


def _missing(name: SinkName) -> MissingExtraError:
    return MissingExtraError(f"metrics: {name} is not installed: pip install 'asyncrollout[{name}]'")
