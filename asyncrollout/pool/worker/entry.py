"""The call that becomes a worker process. It imports little until the process is guarded and its environment is set."""

import contextlib
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from asyncrollout.pool.wire.main_module import MainModule
from asyncrollout.pool.wire.network import NetworkAddress
from asyncrollout.pool.worker import guards


@dataclass(frozen=True)
class WorkerConfig:
    """What a worker gets at its start. Without a `network`, its pool listens in the directory."""

    main: MainModule
    rank: int
    directory: Path
    log: Path
    token: bytes
    parent: int
    environ: dict[str, str]
    send_snapshots: bool
    memory_limit: int | None
    network: NetworkAddress | None = None
    maps_arrays: bool = True
    """Whether the pool can open the files of the directory."""
    working_directory: str | None = None


def serve(config: WorkerConfig) -> NoReturn:
    """Serve envs until the pool stops it. Never returns: anyio would keep the process and give it other work."""
    config.main.install()  # before anything that might import `__main__`
    try:
        old_in, old_out = guards.move_streams(config.log)
        guards.leave_terminal()
        guards.die_with_parent(config.parent)
        guards.leave_the_loop_alone()
        if not config.maps_arrays:
            guards.keep_freed_memory()
        os.environ.update(config.environ)
        if config.working_directory is not None:
            with contextlib.suppress(OSError):  # another machine may not have it
                os.chdir(config.working_directory)
        from asyncrollout.pool.worker.main import WorkerLoop  # noqa: PLC0415 (numpy must see the environment just set)

        worker = WorkerLoop(config)
        guards.start_sentinel(old_in, old_out)
        worker.run()
    except BaseException:  # the log is the last place that can report it
        traceback.print_exc()
        guards.kill_group(os.getpid())
    sys.stdout.flush()
    os._exit(0)
