"""Rewards by similarity: the colours that are built in, a function of anybody's, and a server of embeddings."""

import base64
import json
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from asyncrollout import EnvError, EnvPool, TextOptions, UsageError
from asyncrollout_envs.video import VideoEnv, VideoText
from asyncrollout_envs.video.embedders import EmbeddingService, embed_colours, similarity
from asyncrollout_envs.video.env import Shown

RED, GREEN = np.full((8, 8, 3), (220, 30, 30), np.uint8), np.full((8, 8, 3), (30, 180, 40), np.uint8)
LATER = 4  # seconds; in the first clip nothing of the first scene is seen from then on


class Angles:
    """Texts are at 0 degrees, pictures at those given, one look after the other."""

    def __init__(self, *degrees: float) -> None:
        self.degrees = iter(degrees)

    def __call__(self, items: Sequence[Any]) -> Any:
        angle = np.radians(next(self.degrees))
        picture = (np.cos(angle), np.sin(angle))
        return [(1.0, 0.0) if isinstance(item, str) else picture for item in items]


def cosines(*values: float) -> list[float]:
    return [float(np.degrees(np.arccos(value))) for value in values]


def look(env: VideoEnv, reply: str) -> tuple[Shown, float]:
    shown, reward, *_ = env.step(VideoText(env, TextOptions()).parse(reply).actions[0])
    return shown, reward


def test_a_change_beyond_epsilon_is_rewarded_or_charged() -> None:
    # At the check of the embedder, at the start, and after each look.
    env = VideoEnv(max_turns=9)
    env.reset(seed=0)
    assert env.init_embedder(Angles(*cosines(1, 0.5, 0.55, 0.58, 0.52, 0.47, 0.47))) == {"ok": True, "error": ""}
    rewards = [look(env, f"<watch>{at}-{at + 1}</watch>")[1] for at in range(5)]
    assert rewards == pytest.approx([0.5, 0, -0.5, -0.5, 0])
    wide = VideoEnv(step_frame_reward="similarity", similarity_epsilon=0.2, embedder=Angles(*cosines(0.5, 0.6, 0.9)))
    wide.reset(seed=0)
    assert [look(wide, f"<watch>{at}-{at + 1}</watch>")[1] for at in range(2)] == pytest.approx([0, 0.5])


def test_colours_tell_pictures_apart() -> None:
    assert similarity(embed_colours, "a red square", [RED]) == pytest.approx(1)
    assert similarity(embed_colours, "a red square", [GREEN]) == 0
    assert similarity(embed_colours, "a violet or green thing", [RED, GREEN]) == pytest.approx(0.5**1.5)
    assert similarity(embed_colours, "how many?", [RED]) == 0


def test_watching_what_is_asked_for_is_rewarded_by_colours() -> None:
    env = VideoEnv(step_frame_reward="similarity")
    moments = [at for at in range(env.get_split_size()) if "moves" in env._data.splits["train"][at].problem]
    for task in moments[:6]:
        env.reset(options={"task": task})
        text = VideoText(env, TextOptions())
        assert env.step(text.parse(text.solve()).actions[0])[1] == pytest.approx(0.5)
        windows = env.question.windows
        assert windows is not None
        start, end = windows[0]
        elsewhere = f"<watch>{end + 1:g}-{end + 2:g}</watch>" if start < LATER else "<watch>0-1</watch>"
        assert env.step(elsewhere)[1] == pytest.approx(-0.5)


@pytest.mark.parametrize("result", [None, [[1.0]], np.full((17, 3), np.nan), [["x"] * 3] * 17])
def test_an_embedder_that_gives_nonsense_is_told(result: Any) -> None:
    env = VideoEnv(step_frame_reward="similarity", embedder=lambda _: result)
    assert env.init_embedder(lambda _: result)["ok"] is False
    env.reset(seed=0)
    with pytest.raises(EnvError, match="embedder"):
        env.step("<watch>0-1</watch>")


def test_an_import_path_must_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "asyncrollout_envs.video.embedders:embed_colours"
    with pytest.raises(UsageError, match="ASYNCROLLOUT_ALLOW_IMPORT=1"):
        VideoEnv(embedder=path)
    assert "ASYNCROLLOUT_ALLOW_IMPORT=1" in VideoEnv().init_embedder(path)["error"]
    monkeypatch.setenv("ASYNCROLLOUT_ALLOW_IMPORT", "1")
    assert VideoEnv().init_embedder(path)["ok"]


class Server(ThreadingHTTPServer):
    """Embeds texts and PNG files by their lengths; its `mode` says how it errs."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.mode = "right"
        self.asked: list[dict[str, Any]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append({"path": self.path, **body})
        rows = [{"index": place, "embedding": [len(text), 1.0]} for place, text in enumerate(body["input"])]
        content = json.dumps({"data": rows[::-1]}).encode()
        content = {"short": b'{"data": []}', "junk": b"<html>", "cut": content[:-9]}.get(self.server.mode, content)
        self.send_response(500 if self.server.mode == "broken" else 200)
        if self.server.mode != "endless":
            self.send_header("Content-Length", str(len(content) + 9 * (self.server.mode == "cut")))
        self.end_headers()
        self.wfile.write(content)
        while self.server.mode == "endless":
            try:
                self.wfile.write(b" ")
            except OSError:  # the client has gone
                return

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_service_is_asked_for_texts_and_pictures(server: Server) -> None:
    for url in (server.url, f"{server.url}/v1/", f"{server.url}/v1/embeddings"):
        rows = EmbeddingService(url, 10.0)([RED, "red", GREEN, "green thing"])
        assert rows[1].tolist() == [3, 1]
        assert rows[3].tolist() == [11, 1]
        assert rows[0][0] > 30
        texts, pictures = server.asked[-2:]
        assert (texts["path"], texts["modality"], pictures["modality"]) == ("/v1/embeddings", "text", "image")
        head, _, content = pictures["input"][0].partition(",")
        assert head == "data:image/png;base64"
        assert base64.b64decode(content).startswith(b"\x89PNG")


async def test_a_service_serves_an_env_in_a_worker(server: Server) -> None:
    async with EnvPool(workers=1) as pool, pool.open("video") as env:
        await env.reset(seed=0)
        assert await env.call("init_embedder", service_url=server.url) == {"ok": True, "error": ""}
        await env.step("<watch>0-2</watch>")
        assert len(server.asked[-1]["input"]) == 8
        server.mode = "broken"
        with pytest.raises(EnvError, match=f"embedding service {server.url}/v1/embeddings: Internal Server Error"):
            await env.step("<watch>3-4</watch>")


@pytest.mark.parametrize("mode", ["broken", "short", "junk", "cut"])
def test_a_service_that_errs_gives_a_status(server: Server, mode: str) -> None:
    server.mode = mode
    env = VideoEnv()
    status = env.init_embedder(server.url)
    assert status["ok"] is False
    assert server.url in status["error"]
    asked = len(server.asked)
    env.reset(seed=0)
    assert "frames" in env.step("<watch>0-1</watch>")[4]["rewards"]  # as before: by overlap
    assert len(server.asked) == asked


def test_a_service_without_end_is_left(server: Server) -> None:
    server.mode = "endless"
    with pytest.raises(EnvError, match="its reply has no end"):
        EmbeddingService(server.url, 0.2)(["red"])


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/", "file:///etc/passwd", "http://", "nonsense", ""])
def test_what_is_no_service_gives_a_status(url: str) -> None:
    status = VideoEnv().init_embedder(url)
    assert status["ok"] is False
    assert status["error"]
