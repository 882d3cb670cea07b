"""Where metrics go: a file, TensorBoard, or an experiment tracker. Any object with `write` is a sink."""

import os
import sys
from collections.abc import Mapping, Sequence
from contextvars import copy_context
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
    """Takes numbers by name; `at` is the time in seconds since 1970.

    It may block, since it runs in its own thread. A `close()`, if there is one, is called at the end.
    """

    def write(self, figures: Mapping[str, float]) -> None: ...


class JsonLines:
    """Appends a JSON object per line to a file, such as `metrics.jsonl`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, figures: Mapping[str, float]) -> None:
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(figures) + b"\n")


class TensorBoard:
    """Writes an event file to a directory; its steps are batches."""

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
    """A run of W&B, trackio, or anything else with `log(figures)`; finished at the end only if it is `owned`."""

    def __init__(self, run: Any, *, owned: bool = False) -> None:
        self._run = run
        self._owned = owned

    def write(self, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures))

    def close(self) -> None:
        if self._owned:
            self._run.finish()


def open_sinks(names: Sequence[SinkName], directory: Path, run_id: str, settings: dict[str, Any]) -> list[Sink]:
    """Open the sinks of a run; a resumed run has the same id, and continues in them. May take seconds.

    `WANDB_PROJECT`, `WANDB_MODE`, `TRACKIO_DIR` and the like apply.
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
        settings=wandb.Settings(console="off"),  # do not send the live table
    )
    run.define_metric("*", step_metric="batches")
    return Tracker(run, owned=True)


def _open_trackio(run_id: str, settings: dict[str, Any]) -> Sink:
    try:
        import trackio  # noqa: PLC0415 (optional, and slow to load)
    except ImportError as error:
        raise _missing("trackio") from error
    # It prints, and stdout is for results. `redirect_stdout` would also take what other threads print.
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] == "trackio":
            vars(module)["print"] = partial(print, file=sys.stderr)
    init = partial(trackio.init, project=_PROJECT, name=run_id, config=settings, resume="allow")
    # In its own context the run is nobody's current run, which trackio would finish, and print, at exit.
    return Tracker(copy_context().run(init), owned=True)


def _missing(name: SinkName) -> MissingExtraError:
    return MissingExtraError(f"metrics: {name} is not installed: pip install 'asyncrollout[{name}]'")
