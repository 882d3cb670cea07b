"""Names and defaults that pages and tables of the documentation state are those of the code, and none is missing."""

import importlib
import inspect
import re
import tomllib
from collections.abc import Callable
from typing import Any, get_args

import msgspec
import pytest

import asyncrollout as ar
from asyncrollout import advantages, filters, rewards
from asyncrollout.cli.serve import serve
from asyncrollout.journal import events
from asyncrollout.journal.recorded_run import FATES
from asyncrollout.registry import find_env
from asyncrollout.rollouts.sampling.ledger import ENDS
from asyncrollout.telemetry.sinks import SinkName
from asyncrollout.video import VideoRecorder
from asyncrollout_envs.video.env import VideoEnv
from asyncrollout_envs.video.settings import Rules
from tests.docs_page import ROOT

DOCS = ROOT / "docs"
SPAN = re.compile(r"`([^`]+)`")


def table(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table that starts with these words."""
    lines = iter((DOCS / page).read_text().splitlines())
    next(line for line in lines if line.startswith(f"| {heading}"))
    next(lines)
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return rows


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    return {name: one.default for name, one in inspect.signature(function).parameters.items()}


def value(text: str) -> Any:
    return eval(text, {"__builtins__": {}})


def test_pool_has_the_documented_defaults() -> None:
    told: dict[str, Any] = {}
    for names, given, _ in table("pool.md", "option of `EnvPool`"):
        texts = given.removesuffix(" s").split(", ")
        told |= zip(SPAN.findall(names), texts, strict=True)
    found = defaults(ar.EnvPool)
    assert told.keys() == found.keys()
    for name, text in told.items():
        if text not in ("none", "usable CPUs"):
            assert found[name] == value(text.strip("`")), name
        else:
            assert found[name] is None, name


def test_recorder_has_the_documented_defaults() -> None:
    told = {SPAN.findall(name)[0]: text for name, text, _ in table("video.md", "keyword ")}
    found = defaults(VideoRecorder)
    assert told.keys() == found.keys()
    assert {told.pop("directory"), told.pop("fps")} == {"that of the run", "the env's own"}
    assert found["directory"] is found["fps"] is None
    for name, text in told.items():
        assert found[name] == value(text.strip("`").replace(" GiB", " << 30")), name


@pytest.mark.parametrize(
    ("page", "function", "names"),
    [
        (
            "policies.md",
            ar.OpenAIPolicy,
            "max_concurrency wait_for_server seconds attempt_seconds attempts api_key_env",
        ),
        ("policies.md", ar.BatchedPolicy, "max_batch max_wait"),
        ("policies.md", ar.cached, "size"),
        ("policies.md", ar.local_llm, "parallel context"),
        ("rollouts.md", ar.Failures, "retries min_valid"),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_a_page_has_the_defaults_that_it_names(page: str, function: Callable[..., Any], names: str) -> None:
    text, found = (DOCS / page).read_text(), defaults(function)
    for name in names.split():
        told = [value(one) for one in re.findall(rf'[`(, ]{name}=("\w+"|[\d.]+|None)[`),]', text)]
        assert found[name] in told, f"{page}: {name}={told}, but it is {found[name]!r}"


@pytest.mark.parametrize("name", ["max_in_flight", "max_num_gen_batches", "stall_seconds"])
def test_rollouts_have_the_documented_defaults(name: str) -> None:
    told = re.findall(rf"`{name}`[^.()\n]* \((\d+)\)", (DOCS / "rollouts.md").read_text())
    assert [*map(int, told)] == [defaults(ar.Rollouts)[name]]


def signatures(page: str, modules: tuple[Any, ...]) -> list[tuple[Callable[..., Any], str]]:
    """Functions that a page shows with all their arguments."""
    named = {name: one for module in modules for name, one in vars(module).items() if inspect.isfunction(one)}
    shown = re.findall(r"`(?:\w+\.)?(\w+)\(([^`]*, [^`]*\*[^`]*)\)`", (DOCS / page).read_text())
    return [(named[name], arguments) for name, arguments in shown if name in named]


SIGNATURES = signatures("algorithms.md", (advantages, filters, rewards))


@pytest.mark.parametrize(("function", "told"), SIGNATURES, ids=lambda given: getattr(given, "__name__", ""))
def test_arguments_are_positional_and_have_defaults_as_documented(function: Callable[..., Any], told: str) -> None:
    documented: dict[str, tuple[Any, Any]] = {}
    kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
    for one in re.split(r", (?![^(]*\))", told):
        name, equals, given = one.partition("=")
        if name == "*":
            kind = inspect.Parameter.KEYWORD_ONLY
        else:
            documented[name] = kind, value(given) if equals and given else inspect.Parameter.empty
    for name, (form, default) in documented.items():
        found = inspect.signature(function).parameters[name]
        assert found.kind is form, f"{function.__name__}({name})"
        assert default in (inspect.Parameter.empty, found.default), f"{function.__name__}({name})"
    others = set(inspect.signature(function).parameters) - documented.keys()
    assert others <= {"valid"}  # the page says once that all take it


def test_signatures_are_looked_at() -> None:
    assert {function.__name__ for function, _ in SIGNATURES} >= {
        "grpo", "dr_grpo", "rloo", "reinforce_pp", "normalize", "overlong", "discount", "ranked",
    }  # fmt: skip


def test_gigpo_has_the_documented_options() -> None:
    told = {name: given for names, given, _ in table("algorithms.md", "option ") for name in SPAN.findall(names)}
    found = defaults(advantages.gigpo)
    assert told.keys() == found.keys() - {"group", "trajectory", "reward", "anchor"}
    for name in ("gamma", "step_weight", "normalize", "stats_over", "singleton", "similarity"):
        assert found[name] == value(told[name].strip("`")), name


def test_every_event_of_a_journal_is_documented_with_its_fields() -> None:
    told = {SPAN.findall(event)[0]: SPAN.findall(fields) for event, fields, _ in table("runs.md", "event ")}
    found = {
        one.__struct_config__.tag: [field.name for field in msgspec.structs.fields(one) if field.name != "at"]
        for one in get_args(events.AnyEvent)
    }
    assert {event: sorted(fields) for event, fields in told.items()} == {
        event: sorted(fields) for event, fields in found.items()
    }


def test_every_stop_reason_is_documented_with_its_blame() -> None:
    told = {
        reason: blame
        for reasons, _, blames, _ in table("rollouts.md", "reason ")
        for reason, blame in _paired(SPAN.findall(reasons), blames.split(", "))
    }
    assert told == {reason.value: reason.blame or "" for reason in ar.StopReason}


def _paired(names: list[str], blames: list[str]) -> list[tuple[str, str]]:
    return list(zip(names, blames if len(blames) == len(names) else blames * len(names), strict=True))


def test_every_filter_is_documented() -> None:
    makers = [
        name for name, one in vars(filters).items() if inspect.isfunction(one) and one.__module__ == filters.__name__
    ]
    helpers = {"varies", "select", "as_verdict", "name_of"}
    text = (DOCS / "algorithms.md").read_text().partition("\n## Filters")[2]
    assert not [name for name in makers if name[0] != "_" and name not in helpers and f"`{name}" not in text]


def test_every_sink_that_has_a_name_is_documented() -> None:
    assert [SPAN.findall(name)[0] for name, *_ in table("metrics.md", "name | install")] == [*get_args(SinkName)]


def test_every_shipped_env_is_documented() -> None:
    offered = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["asyncrollout.envs"]
    pages = {"envs/index.md": "keyword", "envs/meta_rl.md": "an episode"}
    tables = (table(page, f"name | the task | an action | reward | {last}") for page, last in pages.items())
    told = {SPAN.findall(row[0])[0] for rows in tables for row in rows}
    assert offered.keys() - told == {"behavior"}  # its section has no table


@pytest.mark.parametrize(
    "row", table("envs/index.md", "name | the task | an action | reward | keyword"), ids=lambda row: row[0]
)
def test_envs_have_the_documented_keywords(row: list[str]) -> None:
    env, *_, told = row
    documented = {name: value(given) for name, given in re.findall(r"`(\w+)=([^`]+)`", told)}
    spec = find_env(env.strip("`"))
    assert isinstance(spec.factory, str)
    module, _, name = spec.factory.partition(":")
    found = defaults(getattr(importlib.import_module(module), name))
    rules = found.pop("rules", None)  # the video env's; its own page has them all
    for keyword, default in documented.items():
        assert rules is not None or found[keyword] == default, keyword
    page = (DOCS / "envs" / "index.md").read_text()
    named = {*re.findall(r"`(\w+)[`=]", page)} | {"config"}  # the settings of a data set
    assert rules is not None or not found.keys() - named


def test_every_status_of_a_group_is_documented() -> None:
    (told,) = re.findall(r"\*\*The status of a group\*\*: (.*)", (DOCS / "report.md").read_text())
    assert SPAN.findall(told) == [*FATES]


@pytest.mark.parametrize("page", ["README.md", "docs/concepts.md"])
def test_every_end_of_a_rollout_is_documented(page: str) -> None:
    (told,) = re.findall(r"ends exactly once: ([\w, ]+)\.", (ROOT / page).read_text())
    assert re.split(", | or ", told) == [*ENDS]


@pytest.mark.parametrize("option", ["max_envs", "max_requests", "idle_seconds", "step_timeout"])
def test_caps_of_a_server_are_the_documented_ones(option: str) -> None:
    flag = "--" + option.replace("_", "-")
    (told,) = re.findall(rf"`{flag}` ([\d.]+)", (DOCS / "service.md").read_text())
    assert float(told) == defaults(serve)[option]


def test_the_video_env_has_the_documented_options() -> None:
    told: dict[str, str | None] = {}
    for names, given, _ in table("envs/video.md", "option "):
        options, texts = SPAN.findall(names), given.split(", ")
        told |= zip(options, texts if len(texts) == len(options) else [None] * len(options), strict=True)
    found = defaults(VideoEnv) | defaults(Rules)
    del found["rules"]
    assert told.keys() == found.keys()
    for name, text in told.items():
        if text is not None and text != "see above":
            assert found[name] == value(text.strip("`").replace(" GiB", " << 30")), name
