"""What pools on Ray are made of, as far as it runs without a cluster."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest

from asyncrollout import EnvPool, MissingExtraError, RayOptions, UsageError
from asyncrollout.cli import doctor
from asyncrollout.pool.hosts import DurationWindow, HostLost
from asyncrollout.pool.wire import codec, network
from asyncrollout.pool.wire.messages import Op
from asyncrollout.pool.wire.shared_arrays import ArrayReader
from asyncrollout.ray import orders
from asyncrollout.ray.actor_host import ActorHost, ActorLink, ReportedPage
from asyncrollout.ray.cluster import ClusterLease
from asyncrollout.ray.listener import WorkerListener
from asyncrollout.ray.room import ActorDemand, ClusterUsage, missing_now, missing_room
from tests.playing import PATIENCE
from tests.waiting import all_tasks_blocked

LOCAL = "127.0.0.1"


class Echo(asyncio.Protocol):
    """What an admitted connection continues as."""

    def __init__(self) -> None:
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[WorkerListener, network.NetworkAddress, list[str]]]:
    """A listener, the address of a life that it expects, and the roles that were let in."""
    listener, roles = WorkerListener(), list[str]()
    await listener.open(LOCAL)

    def admit(role: str) -> Echo | None:
        if role in roles:
            return None
        roles.append(role)
        return Echo()

    try:
        with anyio.fail_after(PATIENCE):
            yield listener, listener.expect(admit), roles
    finally:
        await listener.close()


def said_and_heard(address: network.NetworkAddress, role: str = network.STEPS) -> bytes:
    with network.connect(address, role) as connection:
        connection.sendall(b"hello")
        return connection.recv(100)


async def test_a_worker_of_this_life_is_let_in_once() -> None:
    async with listening() as (_, address, roles):
        for role in (network.CONTROL, network.STEPS):
            assert await anyio.to_thread.run_sync(said_and_heard, address, role) == b"hello"
        with pytest.raises(ConnectionError):
            await anyio.to_thread.run_sync(said_and_heard, address)
        assert roles == [network.CONTROL, network.STEPS]


@pytest.mark.parametrize(
    "wrong", [{"secret": b"another secret"}, {"life": b"another life"}], ids=lambda wrong: next(iter(wrong))
)
async def test_others_are_refused(wrong: dict[str, Any]) -> None:
    async with listening() as (_, address, roles):
        with pytest.raises(ConnectionError, match="does not know this worker"):
            await anyio.to_thread.run_sync(said_and_heard, replace(address, **wrong))
        assert roles == []


async def test_a_worker_of_an_earlier_life_is_refused() -> None:
    async with listening() as (listener, address, roles):
        listener.forget(address)
        with pytest.raises(ConnectionError):
            await anyio.to_thread.run_sync(said_and_heard, address)
        assert roles == []


@pytest.mark.parametrize("junk", [b"GET / HTTP/1.1\r\n\r\n" * 500, codec.frame(["no greeting"]), codec.frame([1] * 4)])
async def test_a_stranger_who_says_anything_is_refused(junk: bytes) -> None:
    def say() -> bytes:
        with socket.create_connection((address.host, address.port)) as connection:
            connection.settimeout(PATIENCE)
            assert len(connection.recv(100)) == network.CHALLENGE
            connection.sendall(junk)
            try:
                return connection.recv(100)
            except ConnectionResetError:
                return b""

    async with listening() as (_, address, roles):
        assert await anyio.to_thread.run_sync(say) == b""
        assert roles == []


async def test_a_worker_reads_nothing_from_what_is_not_its_pool() -> None:
    """Another program may listen where a pool did."""
    with socket.create_server((LOCAL, 0)) as server:
        address = network.NetworkAddress(LOCAL, server.getsockname()[1], b"life", b"secret")

        def pretend() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"?" * network.CHALLENGE)
                connection.recv(1000)
                connection.sendall(b"!" * network.PROOF)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, pretend)
            with pytest.raises(ConnectionError, match="not the pool"):
                await anyio.to_thread.run_sync(said_and_heard, address)


class Written:
    """In place of a transport."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        self.data += data

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True


async def test_a_withdrawn_call_is_given_up_once_the_actor_has_looked(tmp_path: Any) -> None:
    """Until then the worker may begin it; the pool cannot see the page on the worker's node."""
    page = ReportedPage()
    host = ActorHost(
        0, token=b"", arrays=ArrayReader(tmp_path), clock=DurationWindow(), on_hello=print, on_idle=list,
        on_lost=print, reported=page, node="",
    )  # fmt: skip
    link = ActorLink(page, lambda message: host.give_up_withdrawn(getattr(message, "calls", [])))
    control: Any = Written()
    link.connection_made(control)
    first, second = host.call(1, Op.STEP, 1), host.call(2, Op.STEP, 1)
    host.withdraw([1, 2], "recalled")
    told = [orders.read_told(frame) for frame in codec.FrameReader().feed(bytes(control.data))]
    assert told == [orders.Withdraw([1, 2])]
    await all_tasks_blocked()
    assert not first.done()
    assert not second.done()
    link.data_received(orders.to_frame(orders.NotBegun([2])))
    assert not first.done()
    with pytest.raises(HostLost, match="recalled"):
        await second
    first.cancel()
    link.close()
    host.withdraw([1])  # nobody hears it, and nothing fails


def test_starts_are_by_the_clock_of_the_pool() -> None:
    page = ReportedPage()
    link = ActorLink(page, lambda _: None)
    link.data_received(orders.to_frame(orders.ActorHello("node", link.heard - 1000)))
    started = link.heard - 1000 - 5  # five seconds before that, as the node counts
    link.data_received(orders.to_frame(orders.WorkerReport([(7, started)], (7, started), 7, 0, "R", 0.0)))
    assert page.running() == [page.main_call()]
    (call, start), offset = page.main_call(), page.offset
    assert (call, start) == (7, started + offset)
    assert 4.9 < link.heard - start < 5 + PATIENCE


NODES = [
    {"Alive": True, "NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 8.0, "GPU": 1.0}, "Labels": {"zone": "a"}},
    {"Alive": True, "NodeManagerAddress": "10.0.0.2", "Resources": {"CPU": 4.0}, "Labels": {"zone": "b"}},
    {"Alive": False, "NodeManagerAddress": "10.0.0.3", "Resources": {"CPU": 64.0}, "Labels": {}},
]


@pytest.mark.parametrize(
    ("asked", "count", "lack"),
    [
        ({}, 12, ""),
        ({}, 13, "13 workers need 1 CPU each, and it has room for 12: 10.0.0.1 (8 CPU); 10.0.0.2 (4 CPU)"),
        ({"num_cpus": 0.1}, 120, ""),
        ({"num_cpus": 0, "num_gpus": 0.25}, 4, ""),
        ({"num_cpus": 0}, 1000, ""),
        ({"labels": {"zone": "b"}}, 4, ""),
        ({"labels": {"zone": "in(a,b)"}}, 12, ""),
        (
            {"num_gpus": 2, "labels": {"zone": "a"}},
            1,
            (
                "1 workers need 1 CPU, 2 GPU on a node with labels {'zone': 'a'} each, and none of its nodes has that: "
                "10.0.0.1 (8 CPU, 1 GPU, zone=a); 10.0.0.2 (4 CPU, 0 GPU, zone=b)"
            ),
        ),
    ],
)
def test_room_in_a_cluster(asked: dict[str, Any], count: int, lack: str) -> None:
    assert missing_room(ActorDemand(**asked), count, "workers", NODES) == lack


def test_room_that_others_hold() -> None:
    demand, before = ActorDemand(), ClusterUsage({"CPU": 4.0}, {"CPU": 3.0})
    missing = partial(missing_now, demand, 3, "workers", before=before)
    assert missing(now=ClusterUsage({"CPU": 4.0}, {})) == ""  # all three have theirs, and are about to start
    assert missing(now=ClusterUsage({"CPU": 4.0}, {"CPU": 1.0})) == ""
    assert missing(now=ClusterUsage({"CPU": 3.0}, {})) == (
        "3 workers need 1 CPU each, and others hold it: 0 of the cluster's 3 are free"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_cpus": -1}, "num_cpus=-1 is not a number from 0"),
        ({"resources": {"GPU": 1}}, "GPU is asked for as num_gpus="),
        ({"resources": {"sim": "one"}}, "sim='one' is not a number"),
        ({"labels": ["zone"]}, "labels=.* is not a dict"),
        ({"transport": "sockets"}, "transport='sockets' is not valid: did you mean 'socket'"),
        ({"wait": 0}, "wait=0 is not a number of seconds"),
        ({"runtime_env": "."}, "runtime_env='.' is not a dict"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        RayOptions(**options)


def test_wrong_pools() -> None:
    with pytest.raises(UsageError, match="ray= is for backend='ray'"):
        EnvPool(1, ray=RayOptions())
    options: Any = {"num_cpus": 1}
    with pytest.raises(UsageError, match=r"is not RayOptions\(\.\.\.\)"):
        EnvPool(1, backend="ray", ray=options)


@pytest.mark.parametrize("address", ["ray://head:10001", "", 7])
async def test_wrong_addresses(address: Any) -> None:
    with pytest.raises(UsageError, match="address="):
        await ClusterLease.take(address)


async def test_doctor_looks_at_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((LOCAL, 0)) as server:
        address = f"{LOCAL}:{server.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert (await doctor._ray()).state == "ok"
    found = await doctor._ray()
    assert (found.state, found.says.partition(", but ")[2]) == (
        "warning",
        f"no cluster answers at $RAY_ADDRESS={address}",
    )
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    assert "Ray Client" in (await doctor._ray()).says
    monkeypatch.delenv("RAY_ADDRESS")
    assert "starts a cluster on this machine" in (await doctor._ray()).says


async def test_without_ray_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'asyncrollout\[ray\]'"):
        await EnvPool(1, backend="ray").start()
