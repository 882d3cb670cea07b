"""An error in a configuration names its place, what was found and what is valid, and nothing secret."""

import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import asyncrollout as ar
from asyncrollout.config import parse_config, read_config


def error_of(text: str) -> str:
    with pytest.raises(ar.UsageError) as caught:
        parse_config(text)
    assert type(caught.value) is ar.UsageError
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("group_size: 0", "group_size: found 0, expected a whole number from 1"),
        ("group_size: 2.0", "group_size: found 2.0, expected a whole number from 1"),
        ("group_size: true", "group_size: found true, expected a whole number from 1"),
        ("group_size: '4'", "group_size: found the text '4', expected a whole number from 1: write 4, without quotes"),
        ("group_size: [4]", "group_size: found a list of 1 items, expected a whole number from 1"),
        ("group_size: 9223372036854775808", "group_size: found 9223372036854775808, expected a whole number from 1"),
        (
            "group_size: null",
            "group_size: found null, expected a whole number from 1: for its default, leave the key out",
        ),
        ("seed: -1", "seed: found -1, expected a whole number from 0"),
        ("max_lag: -1", "max_lag: found -1, expected a whole number from 0 or null"),
        ("workers: 0", "workers: found 0, expected a whole number from 1 or null"),
        ("stall_seconds: 0", "stall_seconds: found 0, expected a number above 0"),
        ("stall_seconds: .inf", "stall_seconds: found inf, expected a number above 0"),
        ("stall_seconds: .nan", "stall_seconds: found nan, expected a number above 0"),
        ("stall_seconds: 1e3", "stall_seconds: found the text '1e3', expected a number above 0: write 1.0e+3"),
        ("order: finnish", "order: found 'finnish': did you mean 'finish'?"),
        ("advantage: grop", "advantage: found 'grop': did you mean 'grpo'"),
        ("backend: inlin", "backend: found 'inlin': did you mean 'inline'?"),
        ("limits: {turns: 0}", "limits.turns: found 0, expected a whole number from 1 or null"),
        ("limits:", "limits: found null, expected a mapping: for its default, leave the key out"),
        ("failures: {retries: -1}", "failures.retries: found -1, expected a whole number from 0"),
        (
            "agent: {sampling: {temperature: -1}}",
            "agent.sampling.temperature: found -1, expected a number from 0 or null",
        ),
        (
            "agent: {sampling: {top_p: 2}}",
            "agent.sampling.top_p: found 2, expected a number above 0 and up to 1 or null",
        ),
        ("agent: {sampling: {stop: x}}", "agent.sampling.stop: found 'x', expected a list"),
        ("agent: {sampling: {stop: [x, 1]}}", "agent.sampling.stop.1: found 1, which YAML reads as the number 1"),
        ("policy: {error_rate: 2}", "policy.error_rate: found 2, expected a number from 0 to 1"),
        (
            "policy: {latency: [1]}",
            "policy.latency: found a list of 1 items, expected a number from 0 or a pair such as",
        ),
        ("policy: {latency: [1, -1]}", "policy.latency.1: found -1, expected a number from 0"),
        ("policy: {latency: [2, 1]}", "policy.latency: found [2.0, 1.0], expected the least before the most"),
        ("policy: {kind: opnai}", "policy.kind: found 'opnai': did you mean 'openai'?"),
        ("policy: solve", "policy.kind: found 'solve': did you mean 'solver'?"),
        ("policy: 3", "policy: found 3, expected one of solver, scripted, openai, local, or a mapping with this kind"),
        ("policy: {kind: openai, model: x}", "policy.base_url: missing: expected an address with http:// or https://"),
        (
            "policy: {kind: scripted, replies: []}",
            "policy.replies: found a list of 0 items, expected a list of at least 1",
        ),
        ("keep: reward_vary", "keep.name: found 'reward_vary': did you mean 'reward_varies'?"),
        ("keep: {value: 3}", "keep.name: missing: expected one of"),
        ("keep: top_p", "keep.value: missing: expected a number from 0"),
        ("keep: {name: success_between, low: 0.5, high: 0.1}", "keep.low: found 0.5, expected a number up to high"),
        ("env_kwargs: {x: [.nan]}", "env_kwargs.x.0: found .nan, which is not a number"),
        ("env_kwargs: {1: 2}", "env_kwargs: the key 1 is not a text, as YAML reads it: write it in quotes"),
        ("env_kwargs: {yes: 2}", "env_kwargs: the key yes is not a text, as YAML reads it: write it in quotes"),
        ("no: 2", "the key no is not a text, as YAML reads it: write it in quotes"),
        ("score: judge", "score: found 'judge', expected an import path such as 'module:function' or null"),
        ("max_in_flight: 4", "max_in_flight: found 4, expected a whole number from group_size, which is 8"),
        ("backend: inline\nworkers: 2", "workers: found 2, but with backend: inline there are none"),
        ("tasks: x.csv", "tasks: found 'x.csv', expected a list, or a .jsonl or .json file"),
        ("tasks: gone.jsonl", f"tasks: no such file: '{os.getcwd()}/gone.jsonl'"),
        ('tasks: "a\\0.jsonl"', "tasks: no such file:"),
        (f"tasks: {'a' * 5000}.jsonl", "tasks: no such file:"),
    ],
)
def test_values_that_are_not_valid(line: str, error: str) -> None:
    reported = error_of(f"env: bandit\n{line}")
    assert error in reported
    assert reported.startswith("config.yaml")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("seed: 1", "env: missing: expected a mapping or the name of an env (such as frozen_lake) or a list of envs"),
        ("env: []", "env: found a list of 0 items, expected a mapping or the name of an env"),
        ("env: {tag: a}", "env.env: missing: expected the name of an env"),
        ("env: {env: bandot}", "env.env: no env is called 'bandot'"),
        (
            "env: {env: bandit, env_kwargs: {a: 1}}\nenv_kwargs: {b: 1}",
            "env_kwargs: env has env_kwargs, too: give one of them",
        ),
        ("env: {env: bandit, evl: {split: val}}", "unknown key 'env.evl.split': did you mean 'env.eval.split'?"),
        ("env: bandit\neval_split: val", "unknown key 'eval_split'"),
        ("env: frozen_laek", "env: no env is called 'frozen_laek': did you mean 'frozen_lake'?"),
        ("env: [{env: bandit}, {env: sokobann}]", "env.1.env: no env is called 'sokobann': did you mean 'sokoban'?"),
        ("env: [{env: bandit}, {env: bandit}]", "env: the tags ['bandit', 'bandit'] are not all different"),
        ("env: [{env: bandit, share: 0}]", "env.0.share: found 0, expected a number above 0"),
        ("env: [{share: 1}]", "env.0.env: missing"),
        ("env: [{env: bandit}]\nenv_kwargs: {a: 1}", "line 2: env_kwargs: is for one env"),
        ("env: [bandit]", "env.0: found 'bandit', expected a mapping"),
    ],
)
def test_envs_that_are_not_valid(text: str, error: str) -> None:
    assert error in error_of(text)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("env_kwarg: {size: 8}", "unknown key 'env_kwarg.size': did you mean 'env_kwargs.size'?"),
        ("limits: {turn: 8}", "unknown key 'limits.turn': did you mean 'limits.turns'?"),
        ("turns: 8", "unknown key 'turns': did you mean 'limits.turns'?"),
        (
            "temprature: 8",
            "'policy.sampling.temperature' (with kind: openai or kind: local) or 'agent.sampling.temperature'?",
        ),
        ("agent: {temperature: 1}", "unknown key 'agent.temperature': did you mean 'policy.sampling.temperature'"),
        ("policy: {base_url: x}", "unknown key 'policy.base_url' with kind: solver: it is valid with kind: openai"),
        ("policy: {kind: solver, eror_rate: 1}", "unknown key 'policy.eror_rate': did you mean 'policy.error_rate'?"),
        (
            "keep: {name: top_p, value: 1, ratio: 1}",
            "unknown key 'keep.ratio' with name: top_p: it is valid with name: top_std",
        ),
        ("limits: {zzz: 1}", "unknown key 'limits.zzz': available: turns, tokens, seconds, invalid"),
        ("record: {directory: videos}", "unknown key 'record.directory': available: every, keep, fps"),
        ("zzz: 1", "unknown key 'zzz': available: name, seed, env, env_kwargs, policy"),
    ],
)
def test_unknown_keys_name_the_nearest_of_the_whole_tree(line: str, error: str) -> None:
    assert error in error_of(f"env: bandit\n{line}")


def test_unknown_keys_of_list_entries() -> None:
    assert "unknown key 'env.1.shar': did you mean 'env.1.share'?" in error_of(
        "env: [{env: bandit}, {shar: 1, env: x}]"
    )


def test_all_problems_are_reported_at_once_each_with_its_line() -> None:
    assert error_of("env: bandit\ngroup_size: 0\nlimits:\n  turn: 3\npolicy: {kind: x}").splitlines() == [
        "config.yaml: 3 problems",
        "  line 2: group_size: found 0, expected a whole number from 1",
        "  line 4: unknown key 'limits.turn': did you mean 'limits.turns'?",
        "  line 5: policy.kind: found 'x'; available: solver, scripted, openai, local",
    ]


def test_the_errors_that_the_documentation_shows(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "docs" / "configuration.md").read_text()
    shown = page.partition("## Errors")[2].partition("```\n")[2].partition("```")[0]
    (tmp_path / "run.yaml").write_text(
        "env: bandit\nenv_kwarg: {size: 8}\npolicy: {kind: local, sampling: {\n"
        "  temperature: -1}}\nseed: 1\ngroups: 2\nname: no\n"
    )
    with pytest.raises(ar.UsageError) as caught:
        read_config(tmp_path / "run.yaml", ["group_size=0"])
    assert str(caught.value).replace(f"{tmp_path}/", "") == shown.rstrip("\n")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("env: bandit\npolicy.kind: openai\npolicy.model: m", "config.yaml, line 2: policy.base_url: missing"),
        ("env: bandit\nlimits.turnz: 3", "config.yaml, line 2: unknown key 'limits.turnz'"),
    ],
)
def test_problems_of_keys_with_dots_have_their_line(text: str, error: str) -> None:
    assert error_of(text).startswith(error)


def test_softmax_is_of_top_p_alone() -> None:
    assert "it is valid with name: top_p" in error_of("env: bandit\nkeep: {name: top_k, value: 1, softmax: true}")


def test_a_file_of_another_kind_has_only_its_first_problems_told() -> None:
    reported = error_of("".join(f"key{number}: 1\n" for number in range(5_000))).splitlines()
    assert reported[0] == "config.yaml: 20 problems and more"
    assert len(reported) == 21


def test_nothing_that_a_terminal_would_obey_is_reported() -> None:
    odd = r"\e[31m\n\x07"
    for text in (f'"{odd}": 1', f'env_kwargs: {{"{odd}": .nan}}', f'name: !!int "{odd}"', f'order: "{odd}"'):
        assert error_of(f"env: bandit\n{text}").replace("\n  ", "").isprintable()


@pytest.mark.parametrize(
    ("written", "error"),
    [
        ("no", 'name: found no, which YAML reads as the bool false: in quotes, "no" is a text'),
        ("on", 'name: found on, which YAML reads as the bool true: in quotes, "on" is a text'),
        ("1_0", 'name: found 1_0, which YAML reads as the number 10: in quotes, "1_0" is a text'),
        ("010", 'name: found 010, which YAML 1.1 reads as the number 8: write 8, or put it in quotes, "010"'),
        ("1:30", 'name: found 1:30, which YAML 1.1 reads as the number 90: write 90, or put it in quotes, "1:30"'),
        ("2024-01-01", 'name: found 2024-01-01, which YAML 1.1 reads as a date: put it in quotes, "2024-01-01"'),
        ("2024-99-99", 'name: found 2024-99-99, which YAML 1.1 reads as a date: put it in quotes, "2024-99-99"'),
    ],
)
def test_what_yaml_takes_for_something_else(written: str, error: str) -> None:
    assert error_of(f"env: bandit\nname: {written}") == f"config.yaml, line 2: {error}"
    assert parse_config(f'env: bandit\nname: "{written}"').name == written
    reported = error_of(f"env: bandit\nseed: {written}") if written != "1_0" else ""
    assert not reported or written in reported or "true" in reported or "false" in reported


def test_what_nobody_means_is_refused_in_free_values_too() -> None:
    assert "env_kwargs.a.0: found 010, which YAML 1.1 reads as the number 8" in error_of(
        "env: bandit\nenv_kwargs: {a: [010]}"
    )


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGED_BOMB = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 9)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "config.yaml: empty: write at least a line such as 'env: frozen_lake'"),
        ("# nothing\n---\n", "config.yaml: empty"),
        ("- a", "config.yaml: found no mapping of keys to values"),
        ("just text", "config.yaml: found no mapping of keys to values"),
        (
            "env: [",
            "config.yaml, line 1, column 7: not valid YAML: while parsing a flow node: expected the node content",
        ),
        ("a: b: c", "config.yaml, line 1, column 5: not valid YAML: mapping values are not allowed here"),
        ("env: bandit\n\tseed: 1", "config.yaml, line 2, column 1: not valid YAML"),
        ("env: a\n---\nenv: b", "config.yaml, line 2, column 1: not valid YAML: expected a single document"),
        ("env: bandit\nlimits: {turns: 1, turns: 2}", "config.yaml, line 2, column 20: the key 'turns' is given twice"),
        ("env: bandit\nseed: 1\nenv: bandit", "config.yaml, line 3, column 1: the key 'env' is given twice"),
        ("env: &a [*a]", "config.yaml, line 1, column 6: an anchor that contains itself"),
        ("env: &a {<<: *a}", "config.yaml, line 1, column 6: an anchor that contains itself"),
        ("env: &a {b: [{c: *a}]}", "an anchor that contains itself"),
        ("env: *nobody", "config.yaml, line 1, column 6: not valid YAML: found undefined alias"),
        ("env: {<<: 3}", "config.yaml, line 1, column 11: '<<' takes a mapping"),
        (BOMB, "config.yaml: more than 100000 values, once its aliases are written out"),
        (MERGED_BOMB, "config.yaml: more than 100000 values, once its aliases are written out"),
        ("env: " + "[" * 100 + "]" * 100, "nested deeper than 64 levels"),
        ("[" * 10_000, "config.yaml: nested too deeply"),
        ("{a: " * 10_000, "config.yaml: nested too deeply"),
        (
            "env: !!python/object/apply:os.system [x]",
            "column 6: the tag '!!python/object/apply:os.system' is not allowed",
        ),
        ("env: !!python/name:os.system", "the tag '!!python/name:os.system' is not allowed"),
        ("env: !mine {a: b}", "config.yaml, line 1, column 6: the tag '!mine' is not allowed"),
        ("env: !!binary aGk=", "the tag '!!binary' is not allowed"),
        ("env: !!set {a}", "the tag '!!set' is not allowed"),
        ("!!python/tuple [a]: b", "the tag '!!python/tuple' is not allowed"),
        ("? [a]\n: b", "config.yaml, line 1, column 3: a key must be a text, not a list or a mapping"),
        ("env: !!int x", "config.yaml, line 1, column 6: this is not a valid int"),
        ("env: !!bool x", "config.yaml, line 1, column 6: this is not a valid bool"),
        ("env: !!float ''", "config.yaml, line 1, column 6: this is not a valid float"),
        ("seed: 0x" + "f" * 9_000, "config.yaml, line 1, column 7: a number of more than 64 bits"),
        ("seed: " + "9" * 9_000, "config.yaml, line 1, column 7: this is not a valid int"),
        ("env: bandit\nname: a\x00b", "config.yaml, line 2: not text: the character '\\x00' has no place in YAML"),
    ],
)
def test_documents_that_cannot_be_read(text: str, error: str) -> None:
    assert error in error_of(text)


def test_aliases_and_merges_that_are_fine() -> None:
    text = "env: bandit\nenv_kwargs: {a: &a {x: 1, y: 2}, b: *a, c: {<<: [{y: 3}, *a], x: 0}}"
    config = parse_config(text)
    assert config.env_kwargs == yaml.safe_load(text)["env_kwargs"]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, "no such file"),
        (b"env: \xff\xfe", ", line 1: not UTF-8 text"),
        (b"env: a\nb: \x80", ", line 2: not UTF-8 text"),
        (b"\x7fELF\x02\x01\x01\x00", ", line 1: not text"),
        (b"#" * 1_000_001, "larger than 1000000 bytes"),
        (b"", "empty"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, content: bytes | None, error: str) -> None:
    path = tmp_path / "run.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ar.UsageError) as caught:
        read_config(path)
    assert str(caught.value).startswith(str(path))
    assert error in str(caught.value)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ar.UsageError, match="a directory"):
        read_config(tmp_path)
    with pytest.raises(ar.UsageError, match="no regular file"):
        read_config(Path("/dev/zero"))
    with pytest.raises(ar.UsageError, match="cannot be read"):
        read_config(tmp_path / ("x" * 300))
    with pytest.raises(ar.UsageError, match="cannot be read"):
        read_config(Path("a\0b"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ar.UsageError, match="no regular file"):
        read_config(tmp_path / "pipe")


def test_a_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.touch(0o000)
    user = os.geteuid()
    if user == 0:  # who may read everything
        os.seteuid(65534)
    try:
        with pytest.raises(ar.UsageError, match="cannot be read: Permission denied"):
            read_config(path)
    finally:
        os.seteuid(user)


def test_a_mark_of_byte_order_is_no_problem(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xef\xbb\xbfenv: bandit")
    assert read_config(path).env == "bandit"


@pytest.mark.parametrize(
    "lines",
    [
        "policy: {kind: openai, base_url: http://a/v1, model: m, api_key: sk-canary}",
        "policy: {kind: openai, base_url: http://a/v1, model: m, api_key_env: sk-canary}",
        "policy: {kind: openai, base_url: http://a/v1, model: m, api_key_env: [sk-canary]}",
        "policy: {kind: openai, base_url: http://me:sk-canary@a/v1, model: m}",
        "policy: {kind: openai, base_url: http://a/v1?key=sk-canary, model: m}",
        "policy: {kind: openai, base_url: [http://sk-canary@a/v1], model: m}",
        "policy: {kind: openai, base_url: sk-canary, model: m}",
        "policy: {kind: openai, base_url: http://a/v1, model: m, sampling: {extra: {API-KEY: sk-canary}}}",
        "policy: {api_key: [sk-canary]}",
        "api_key: sk-canary",
        "env_kwargs: {judge: {api_key: sk-canary}}",
        "tasks: [{openai_api_key: sk-canary}]",
        "policy: {api_key: sk-canary, api_key: sk-canary}",
        "policy: {api_key: 'sk-canary}",
        "policy: {api_key: sk-canary: x}",
        "policy:\n  api_key: sk-canary\n seed: 1",
        "policy: {api_key: !!int sk-canary}",
        "policy: {api_key: &sk [*sk], x: sk-canary}",
        "policy: {api_key: sk-canary\x07}",
    ],
)
def test_a_key_is_refused_and_never_told(lines: str) -> None:
    reported = error_of(f"env: bandit\n{lines}")
    assert "canary" not in reported
    with pytest.raises(ar.UsageError) as caught:
        parse_config(f"env: bandit\n{lines}")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_an_error_on_a_key_says_what_to_do() -> None:
    reported = error_of("env: bandit\npolicy: {kind: openai, base_url: http://a/v1, model: m, api_key: x}")
    assert reported == (
        "config.yaml, line 2: policy.api_key: a key is never written into a file: set an environment variable, and "
        "give its name as policy.api_key_env (the default is OPENAI_API_KEY)"
    )


@given(st.text(alphabet="envbadit: \n-[]{},&*!|>'\"#%@?<~0x.:", max_size=60))
def test_any_text_is_a_config_or_an_error(text: str) -> None:
    reported = "config.yaml"
    try:
        parse_config(text)
    except ar.UsageError as error:
        reported = str(error)
    assert reported.startswith("config.yaml")
