"""A Ray cluster on this machine for tests: a head without CPUs, where the programs are, and two nodes.

It lives in a process of its own (`python -m tests.ray_cluster SOCKET`), which all test processes of a run share. It
ends when the last of them closes its connection, also if they are killed, and then kills all that has its mark.
"""

import fcntl
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

MARK = "ASYNCROLLOUT_TEST_CLUSTER"
NODES, CPUS = 2, 2
PATIENCE = 120.0  # seconds, a guard against hanging; nothing is timed
STARTED = "cluster: started"
_FAST = {
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_worker_niceness": "0",  # others use this machine, too
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
}
_SOME_ROOM: dict[str, Any] = {
    "object_store_memory": 80 << 20,
    "include_dashboard": False,
    "include_log_monitor": False,
}


class TestCluster:
    """A test process's end of the connection."""

    __test__ = False

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._file = connection.makefile("r")
        told = json.loads(self._file.readline() or "null")
        if told is None:
            raise ConnectionError("the cluster is about to end")
        self.address: str = told["address"]
        self.mark: str = told["mark"]

    def close(self) -> None:
        self._file.close()
        self._connection.close()

    def add_node(self, **resources: Any) -> str:
        """The id of a new node."""
        node: str = self._ask(do="add", **resources)
        return node

    def kill_node(self, node: str) -> None:
        """End a node as a power cut would, if it is still there."""
        self._ask(do="kill", node=node)

    def forget_node(self, node: str) -> None:
        """Kill a node, if it is still there, and wait until Ray puts nothing there any more."""
        self._ask(do="forget", node=node)

    def processes(self) -> dict[int, str]:
        """Everything that runs on the nodes, by its pid: the command."""
        return dict(_marked(self.mark))

    def workers(self) -> set[int]:
        """The worker processes of pools."""
        return {pid for pid, command in self.processes().items() if "asyncrollout.pool.worker.entry" in command}

    def _ask(self, **request: Any) -> Any:
        self._connection.sendall(json.dumps(request).encode() + b"\n")
        reply = json.loads(self._file.readline())
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply["value"]


@contextmanager
def joined(directory: Path) -> Iterator[TestCluster]:
    """The cluster of the test run with this directory; started if there is none."""
    path = directory / "ray.sock"
    with (directory / "ray.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cluster = _connect(path)
        if cluster is None:
            _launch(path, directory / "ray.log")
            cluster = _connect(path)
    assert cluster is not None, (directory / "ray.log").read_text()
    try:
        yield cluster
    finally:
        cluster.close()


@contextmanager
def one_at_a_time(directory: Path) -> Iterator[None]:
    """What a test finds on the nodes is its own: tests of other processes wait."""
    with (directory / "ray.turn").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def left_on_nodes(cluster: TestCluster) -> set[int]:
    """Workers that are still there after a while."""
    look = threading.Event()
    for _ in range(int(PATIENCE / 4 / 0.05)):
        if not cluster.workers():
            break
        look.wait(0.05)
    return cluster.workers()


def _connect(path: Path) -> TestCluster | None:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(PATIENCE)
    try:
        connection.connect(str(path))
        return TestCluster(connection)
    except OSError:
        connection.close()
        return None


def _launch(path: Path, log: Path) -> None:
    """As nobody's child: a test that looks for processes it left must not find these."""
    path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.ray_cluster", str(path)]
    environ = {**os.environ, **_FAST, MARK: uuid.uuid4().hex}
    environ.pop("RAY_ADDRESS", None)
    root = Path(__file__).parent.parent
    script = '"$@" </dev/null >"$LOG" 2>&1 &'
    subprocess.run(
        ["/bin/sh", "-c", script, "sh", *command],
        env={**environ, "LOG": str(log)},
        cwd=root,
        start_new_session=True,
        check=True,
    )
    _wait_until_started(log)


def _wait_until_started(log: Path) -> None:
    look = threading.Event()
    for _ in range(int(PATIENCE / 0.05)):
        text = log.read_text() if log.exists() else ""
        if STARTED in text:
            return
        if "Traceback" in text:
            break
        look.wait(0.05)
    raise RuntimeError(f"the cluster did not start:\n{log.read_text()}")


def _marked(mark: str) -> Iterator[tuple[int, str]]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                yield process.pid, " ".join(process.cmdline())


# The process of the cluster.


class _Served:
    """The cluster, and how many connections to it are open."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.nodes = {node.node_id: node for node in cluster.worker_nodes}
        self._lock = threading.Lock()
        self._connections = 0
        self._is_over = False
        self._work: queue.SimpleQueue[tuple[dict[str, Any], Future[dict[str, Any]]] | None] = queue.SimpleQueue()

    def run(self) -> None:
        """In the main thread, as Ray wants it: do what is asked, until nobody is connected any more."""
        while (asked := self._work.get()) is not None:
            request, reply = asked
            try:
                reply.set_result({"value": getattr(self, f"_{request.pop('do')}")(**request)})
            except Exception as error:
                reply.set_result({"error": repr(error)})

    def serve(self, connection: socket.socket) -> None:
        with self._lock:
            if self._is_over:
                connection.close()
                return
            self._connections += 1
        told = {"address": self.cluster.address, "mark": os.environ[MARK]}
        with connection, connection.makefile("r") as requests, suppress(OSError):
            connection.sendall(json.dumps(told).encode() + b"\n")
            for line in requests:
                connection.sendall(json.dumps(self._answer(json.loads(line))).encode() + b"\n")
        with self._lock:
            self._connections -= 1
            if not self._connections:
                self._is_over = True
                self._work.put(None)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        reply: Future[dict[str, Any]] = Future()
        self._work.put((request, reply))
        return reply.result()

    def _add(self, **resources: Any) -> str:
        node = self.cluster.add_node(**{"num_cpus": CPUS, **_SOME_ROOM, **resources})
        self.nodes[node.node_id] = node
        return str(node.node_id)

    def _kill(self, node: str) -> None:
        """A raylet ends, and with it all that it has started."""
        raylet = self.nodes.pop(node).all_processes["raylet"][0].process.pid
        children = psutil.Process(raylet).children(recursive=True)
        for process in [psutil.Process(raylet), *children]:
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)

    def _forget(self, node: str) -> None:
        if node in self.nodes:
            self._kill(node)
        look, state = threading.Event(), self.cluster.global_state
        for _ in range(int(PATIENCE / 4 / 0.05)):
            if node not in state._live_node_ids():
                return
            look.wait(0.05)
        raise TimeoutError(f"Ray takes node {node} to be alive")


def _main(path: str) -> None:
    temporary = tempfile.mkdtemp(prefix="rc-")  # a short path: sockets lie below it
    os.environ["RAY_TMPDIR"] = temporary  # where Ray writes the address of "the" cluster
    os.mkdir(f"{temporary}/ray")
    from ray.cluster_utils import Cluster

    try:
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "temp_dir": temporary, **_SOME_ROOM})
        try:
            for _ in range(NODES):
                cluster.add_node(num_cpus=CPUS, **_SOME_ROOM)
            served = _Served(cluster)
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(path)
                listening.listen()
                print(STARTED, flush=True)
                threading.Thread(target=_accept, args=(listening, served), daemon=True).start()
                served.run()
                Path(path).unlink(missing_ok=True)
        finally:
            cluster.shutdown()
    finally:
        for pid, _ in list(_marked(os.environ[MARK])):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(temporary, ignore_errors=True)


def _accept(listening: socket.socket, served: _Served) -> None:
    while True:
        connection, _ = listening.accept()
        threading.Thread(target=served.serve, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    _main(sys.argv[1])
