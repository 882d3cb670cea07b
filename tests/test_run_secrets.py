"""Keys that are given to a run, in every place where one can be, are in none of its files, messages and pages."""

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import anyio
import pytest

from asyncrollout import ChatAgent, EnvSpec, Failures, Limits, ProviderError, Rollouts, ScriptedPolicy, UsageError
from asyncrollout.cli.app import main
from asyncrollout.types import Generation, Request, Sampling
from asyncrollout.viewer.run_index import RunIndex
from asyncrollout.viewer.server import serving
from tests.envs.tiny import Counter
from tests.test_cli_runs import call_program

ENV = '''
class Vault:
    """Fails at first, and says with which password."""

    resets = 0

    def __init__(self, size=1, **given):
        self.given = given

    def reset(self, *, seed=None, options=None):
        self.turns = 0
        Vault.resets += 1
        if Vault.resets == 1:
            raise RuntimeError(f"no entry: {self.given!r}, password {self.given.get('password')}")
        return "closed", {}

    def step(self, action):
        self.turns += 1
        return "open", float(action == "0"), True, False, {}

    def describe(self, observation):
        return observation
'''
CONFIG = """
# wandb_key: CANARY-in-a-comment
env: vault:Vault
policy: {kind: scripted, replies: ["0", "1"]}
env_kwargs: {size: 3}
group_size: 2
groups: 2
batches: 2
failures: {retries: 5, min_valid: 1}
"""
OPTION, OTHER = 'CANARY-of/an+option"é', "CANARY-of-a-resumption"
URL = "https://me:CANARY/of@an:address@db.example.org:5432/x"
BASIC = "Basic " + base64.b64encode(b"me:CANARY-of-a-header").decode()
NESTED, VARIABLE = "CANARY-nested-key", "CANARY-of-a-variable"
CANARIES = [OPTION, OTHER, URL, NESTED, VARIABLE, BASIC]
VARIABLES = dict.fromkeys(("OPENAI_API_KEY", "WANDB_API_KEY", "HF_TOKEN", "DB_PWD", "MY_CREDENTIALS"), VARIABLE)
SECRETS = (
    f"env_kwargs.password={json.dumps(OPTION)}",
    f"env_kwargs.url={URL}",
    f"env_kwargs.headers={{Authorization: {BASIC}, Accept: any}}",
    f"env_kwargs.judge.api_key={NESTED}",
)


def forms(secret: str) -> Iterator[bytes]:
    yield secret.encode()
    yield json.dumps(secret)[1:-1].encode()
    yield repr(secret)[1:-1].encode()
    yield quote(secret, safe="").encode()
    yield quote(secret).encode()
    yield base64.b64encode(secret.encode())


def assert_hidden(content: bytes, where: object) -> None:
    assert b"CANARY" not in content, where
    for secret in CANARIES:
        for form in forms(secret):
            assert form not in content, where
    assert base64.b64encode(b"me:CANARY-of-a-header").rstrip(b"=") not in content, where


def assert_nothing_in(directory: Path, *outputs: "subprocess.CompletedProcess[str]") -> None:
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert {"manifest.json", "journal.jsonl", "trajectories.jsonl"} <= {path.name for path in files}
    for path in files:
        assert_hidden(path.read_bytes(), path)
    for done in outputs:
        assert_hidden((done.stdout + done.stderr).encode(), done.args)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "vault.py").write_text(ENV)
    (tmp_path / "vault.yaml").write_text(CONFIG)
    return tmp_path


def asked(place: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return call_program(place, *arguments, "--allow-import", PYTHONPATH=str(place), **VARIABLES)


def test_no_key_is_in_a_run_of_the_command_line(place: Path) -> None:
    first = asked(place, "run", "vault.yaml", "name=mine", *SECRETS)
    assert first.returncode == 0, first.stderr
    directory = place / "runs" / "mine"
    assert_nothing_in(directory, first)
    shown = (directory / "config.resolved.yaml").read_text()
    assert "password: '[hidden]'" in shown
    assert "https://[hidden]@db.example.org:5432/x" in shown
    recorded = (directory / "trajectories.jsonl").read_text() + (directory / "journal.jsonl").read_text()
    assert "no entry: {'password': '[hidden]'" in recorded

    plain = asked(place, "resume", "runs/mine", "batches=3")
    assert plain.returncode == 2
    for option in ("password", "url", "headers.Authorization", "judge.api_key"):
        reported = f"env_kwargs.{option}: found [hidden], which stands for a secret that is not kept in files"
        assert reported in plain.stderr
        assert f"give it again on the command line, as env_kwargs.{option}=VALUE" in plain.stderr

    taken = asked(place, "run", "vault.yaml", "name=mine", *SECRETS)
    assert (taken.returncode, "runs/mine exists: a run that finished" in taken.stderr) == (2, True)

    again = (f"env_kwargs.password={OTHER}", *SECRETS[1:])
    refused = asked(place, "resume", "runs/mine", "batches=3", "group_size=4", *again)
    assert (refused.returncode, "group_size=4 (was 2)" in refused.stderr) == (2, True)
    resumed = asked(place, "resume", "runs/mine", "batches=3", *again, "--json")
    assert resumed.returncode == 0, resumed.stderr
    pages = asked(place, "report", "runs/mine")
    assert_nothing_in(directory, plain, refused, resumed, pages)

    anyio.run(look_at_pages, place / "runs")


async def look_at_pages(runs: Path) -> None:
    async with serving(RunIndex([runs]), None) as address, aiohttp.ClientSession(address) as session:
        for page in ("/", "/runs.json", "/runs/mine/", "/metrics"):
            async with session.get(page) as answer:
                assert_hidden(await answer.read(), page)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["policy={kind: openai, model: m, base_url: 'http://me:CANARY@h/v1'}"], "may be a secret"),
        (["policy={kind: openai, model: m, base_url: 'http://CANARY@h/v1'}"], "may be a secret"),
        (
            ["policy={kind: openai, model: m, base_url: 'http://h/v1', api_key: CANARY}"],
            "policy.api_key: a key is never",
        ),
        (["agent.system_prompt=ask http://me:CANARY@h/ for it"], "agent.system_prompt: this looks like a key"),
        (["score=sk-CANARY-0123456789abcdef"], "score: "),
        (["tasks=[{db_pwd: CANARY}]"], "tasks.0.db_pwd: a key is never written"),
        ([f"agent.system_prompt=I know {VARIABLE}"], "the configuration holds the value of $"),
        (["wandb.key=CANARY-0123"], "wandb"),
    ],
)
def test_a_key_where_none_belongs_is_refused_without_being_shown(
    place: Path, arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    reported = refused(place, arguments, monkeypatch, capfd)
    assert says in reported
    assert_hidden(reported.encode(), arguments)
    for path in (place / "runs").rglob("*"):
        assert not path.is_file() or b"CANARY" not in path.read_bytes()


def refused(
    place: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> str:
    """What is printed, in this process."""
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(place)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    assert main(["run", "vault.yaml", "name=mine", *arguments, "--allow-import"]) == 2
    return "".join(capfd.readouterr())


@pytest.mark.parametrize("line", ["{password: x}", "{url: 'http://me:CANARY@h/'}", "{auth: [[X-Api-Key, CANARY]]}"])
def test_a_file_with_a_secret_for_an_env_says_how_to_give_it(
    place: Path, line: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (place / "vault.yaml").write_text(CONFIG.replace("{size: 3}", line))
    reported = refused(place, [], monkeypatch, capfd)
    assert "a key is never written into a file: let the env read an environment variable, or give it on" in reported
    assert f"as env_kwargs.{line[1:].partition(':')[0]}=VALUE" in reported
    assert "CANARY" not in reported


def test_the_demo_takes_no_password_in_an_address(tmp_path: Path) -> None:
    done = call_program(tmp_path, "demo", "--base-url", "http://me:CANARY@127.0.0.1:9/v1", "--model", "m")
    assert (done.returncode, "policy.base_url: a key is never written into a file" in done.stderr) == (2, True)
    assert "CANARY" not in done.stdout + done.stderr
    assert all(b"CANARY" not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


class Telling(ScriptedPolicy):
    """Fails, and tells what it knows."""

    password = OPTION

    async def generate(self, request: Request) -> Generation:
        if request.session.endswith(".0"):
            secret = self.password
            raise ProviderError(
                f"refused: {secret!r} {quote(secret)} {BASIC}, {VARIABLE} at {URL}, header X-Key={NESTED}"
            )
        return await super().generate(request)


async def test_no_key_is_in_a_run_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Vault(Counter):
        def __init__(self, **given: Any) -> None:
            super().__init__()

    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    command = [
        "train.py",
        "--env.token",
        OPTION,
        f"env.password={OPTION}",
        f"wandb.key={NESTED}",
        f"--hf-token={OTHER}",
    ]
    monkeypatch.setattr("sys.argv", [*command, URL, "-H", f"Authorization: {BASIC}", f"{{judge: {{pwd: {NESTED}}}}}"])
    secrets = {"password": OPTION, "url": URL, "headers": {"Authorization": BASIC}, "judge": [{"api_key": NESTED}]}
    policy = Telling(["0"])
    agent = ChatAgent(policy, sampling=Sampling(extra={"user_token": NESTED}))
    options: dict[str, Any] = {"env": EnvSpec(name="vault", factory=Vault, runs="light"), "agent": agent}
    options |= {
        "group_size": 2,
        "run_dir": tmp_path / "run",
        "failures": Failures(retries=1, min_valid=1),
        "limits": Limits(turns=1),
    }
    async with Rollouts(**options, env_kwargs=secrets) as source:
        await source.collect(groups=2)
    changed = {**secrets, "password": OTHER, "judge": [{"api_key": OTHER}]}
    policy.password = OTHER
    async with Rollouts(**options, env_kwargs=changed, resume=True) as source:  # a key may be another one
        await source.collect(groups=2)
    for path in (tmp_path / "run").rglob("*"):
        assert_hidden(path.read_bytes(), path)
    with pytest.raises(UsageError, match="cannot be resumed") as caught:
        async with Rollouts(**options, env_kwargs={**secrets, "size": 5}, resume=True):
            pass
    assert_hidden(str(caught.value).encode(), "the error")
    assert os.environ["DB_PWD"] == VARIABLE


TALKATIVE = '''
from asyncrollout.logs import get_logger


class Talker:
    """Logs its password."""

    runs = "light"

    def __init__(self, password="", note="", headers=()):
        self.password = password

    def reset(self, *, seed=None, options=None):
        get_logger("talker").warning("login", said=f"as {self.password}, with X-Auth-Token")
        return "closed", {}

    def step(self, action):
        return "open", 1.0, True, False, {}

    def describe(self, observation):
        return observation
'''


@pytest.mark.parametrize("command", ["run", "eval"])
def test_a_key_is_hidden_wherever_it_is_said_again(tmp_path: Path, command: str) -> None:
    (tmp_path / "talker.py").write_text(TALKATIVE)
    config = f"# {NESTED}\nenv: talker:Talker\npolicy: {{kind: scripted, replies: ['0']}}\nbatches: 1\ngroups: 1\n"
    (tmp_path / "talker.yaml").write_text(config)
    given = [f"env_kwargs.password={NESTED}", f"env_kwargs.note=it is {NESTED}", "group_size=1", "backend=inline"]
    given += ["evaluate=1"] * (command == "eval") + [f"env_kwargs.headers=[X-Auth-Token, {OTHER}]"]
    if command == "eval":
        named = ["--env", "talker:Talker", "--policy", "scripted", "policy.replies=['0']", "--name", "mine"]
        done = asked(tmp_path, "eval", *named, *given)
    else:
        done = asked(tmp_path, "run", "talker.yaml", "name=mine", *given)
    assert done.returncode == 0, done.stderr
    assert_nothing_in(tmp_path / "runs" / "mine", done)
    assert "said='as [hidden], with X-Auth-Token'" in done.stderr  # the name of a header is no secret


@pytest.mark.parametrize("word", ["test_env_name", "ChatAgent", "ScriptedPolicy", "system_prompt", "a_plain_option"])
async def test_a_variable_that_holds_a_plain_word_changes_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    class Plain(Counter):
        def __init__(self, kind: str) -> None:
            super().__init__()

    options: dict[str, Any] = {"env": EnvSpec(name="test_env_name", factory=Plain, runs="light"), "group_size": 1}
    options |= {"agent": ChatAgent(ScriptedPolicy(["0"])), "run_dir": tmp_path, "limits": Limits(turns=1)}
    options |= {"env_kwargs": {"kind": "of a_plain_option"}}
    monkeypatch.setenv("MY_API_KEY", word)
    async with Rollouts(**options) as source:
        await source.collect(groups=1)
    began = json.loads((tmp_path / "journal.jsonl").read_text().splitlines()[0])
    assert began["given"]["envs"]["test_env_name"]["env"] == "test_env_name"
    monkeypatch.delenv("MY_API_KEY")
    async with Rollouts(**options, resume=True) as source:
        await source.collect(groups=1)
    with pytest.raises(UsageError, match="cannot be resumed with other settings"):
        async with Rollouts(**options | {"env_kwargs": {"kind": "in a_plain_option"}}, resume=True):
            pass
