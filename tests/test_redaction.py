"""What is hidden by its name, by its looks and by its value, and what is left alone."""

import base64
import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import inspect

from asyncrollout.config import Config
from asyncrollout.config.suggestions import valid_keys
from asyncrollout.dropin.rlinf.config import EvaluationConfig
from asyncrollout.redaction import (
    HIDDEN,
    hide,
    hide_in_command,
    hide_in_document,
    hide_looks,
    is_secret,
    known_secrets,
    named_secrets,
    without_secrets,
)

SECRET_NAMES = """
    credentials credential creds auth basic_auth http-auth pwd db_pwd dbPwd password passwd Password1 user_password
    userPassword passphrase ssh_passphrase bearer bearer_token token hf_token HF_TOKEN github_token sessionToken
    refresh_token id_token x-auth-token --env.token env.token wandb.key trackio.api_key key api_key apiKey APIKey apikey
    X-Api-Key x_key openai_key OPENAI_API_KEY service_key signing_key encryptionKey ssh_key account_key license_key
    private_key private_key_pem access_key AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID secret secret_value secret_id
    client_secret clientSecret SECRETS Authorization Proxy-Authorization authorization cookie Set-Cookie jwt github_pat
    db_pass smtp_pass api_keys access_tokens auth_header password_hash api_key_2 authtoken accesstoken
"""

PLAIN_NAMES = """
    api_key_env password_env token_file password_file key_path max_tokens maxTokens token_ids n_tokens tokens
    max_new_tokens key_size keys author authors authority tokenizer tokenize detokenize keep keep_alive monkey
    keyboard turkey hockey keyframes key_frames keypoints eos_token pad_token bos_token special_tokens stop_token_ids
    reward_fn_key rng_key ground_truth_key img_token
    sort_key prompt_key image_key reward_key answer_key primary_key public_key arrow_key password_length auth_type
    auth_url token_url oauth_url secretary bypass compass pass_rate first_pass passes passed pin_memory basic bearings
    pathological spawn per_token tokens_per_second credits cookiecutter_x seed size model base_url temperature env.size
"""


def test_names() -> None:
    assert [name for name in SECRET_NAMES.split() if not is_secret(name)] == []
    assert [name for name in PLAIN_NAMES.split() if is_secret(name)] == []


def test_no_key_of_a_configuration_is_named_like_a_secret() -> None:
    for root in (Config, EvaluationConfig):
        keys = [key.path for key in valid_keys(inspect.type_info(root))]
        assert len(keys) > 20
        assert [path for path in keys if is_secret(str(path[-1]))] == []


words = st.sampled_from(["env", "judge", "server", "my", "second", "main"])
last_words = st.sampled_from(["password", "token", "api_key", "client_secret", "credentials", "pwd"])


@given(st.lists(words, max_size=3), last_words)
def test_names_are_judged_by_their_words(before: list[str], last: str) -> None:
    for name in ("_".join([*before, last]), "-".join([*before, last]), ".".join([*before, last])):
        assert is_secret(name)
        assert is_secret(f"--{name}".upper())
        assert not is_secret(f"{name}_env")
        assert not is_secret(f"{name}.size")
        assert not is_secret(f"{name}ish")
    camel = "".join(part.title() for part in [*before, *last.split("_")])
    assert is_secret(camel[0].lower() + camel[1:])


LOOKS = [
    "sk-proj-abcdefghijklmnop0123",
    "hf_abcdefghijklmnopqrstuvwxyz",
    "ghp_abcdefghijklmnopqrst0123456789",
    "github_pat_11ABCDEFG0abcdefghijkl",
    "xoxb-123456789012-abcdefghijkl",
    "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc-def_ghi",
]


@pytest.mark.parametrize("secret", LOOKS)
def test_keys_are_known_by_their_looks(secret: str) -> None:
    for form in ("{}", "key {} refused", "'{}'", '{{"said": "{}"}}', "({})."):
        assert secret not in hide_looks(form.format(secret), ())
    assert secret not in json.dumps(without_secrets({"any": [{"deep": secret}], secret: 1}))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://u:p@ss@host/x", "http://[hidden]@host/x"),
        ("http://u:p/w@host/", "http://[hidden]@host/"),
        ("http://u:p'w\"x@host/", "http://[hidden]@host/"),
        ("http://u:12/34@host", "http://[hidden]@host"),
        ("http://u:p?w#x@host:80/y", "http://[hidden]@host:80/y"),
        ("https://TOKEN@host/a", "https://[hidden]@host/a"),
        ("https://:pw@host", "https://[hidden]@host"),
        ("postgres+async://me:a%40b@db:5432/x", "postgres+async://[hidden]@db:5432/x"),
        ("see https://me:p/w@host/x, or http://a/b", "see https://[hidden]@host/x, or http://a/b"),
        ("http://h/v1?api_key=abc&n=1", "http://h/v1?api_key=[hidden]&n=1"),
        ("Basic dXNlcjpwdw==", "Basic [hidden]"),
        ("basic dXNlcjpwdw==", "basic [hidden]"),
        ("Basic canary-0123456789", "Basic [hidden]"),
        ("Bearer abc", "Bearer [hidden]"),
        ("bearer abcdef-0123456", "bearer [hidden]"),
    ],
)
def test_values_that_hold_a_secret(text: str, shown: str) -> None:
    assert hide_looks(text, ()) == shown
    assert hide(f"it said: {shown}", ()) == f"it said: {shown}"


@pytest.mark.parametrize(
    "text",
    [
        "Basic arithmetic and Basic Algebra",
        "Bearers of bad news; the bearer of this letter",
        "Send the header Authorization Bearer <token>",
        "http://localhost:8000/v1/models/a@b",
        "https://medium.com/@somebody/a-story",
        "http://127.0.0.1:80/a@b",
        "ssh://git@host/repository",
        "write to somebody@example.org: 3:1",
        "sk-learn is a short one, hf_hub and eyJ are no keys",
        "max_tokens=5, seed=3, author='me'",
        "a || b == c; d := e",
    ],
)
def test_what_looks_like_none_is_left_alone(text: str) -> None:
    assert hide_looks(text, ()) == text
    assert hide_looks(text, ["another secret"]) == text


USER_SIGNS = st.characters(codec="utf-8", exclude_characters=' \t\n\r"<>\\', exclude_categories=["Z", "C"])


@given(st.text(USER_SIGNS, min_size=6, max_size=20), st.sampled_from(["host", "db.example.org:5432", "127.0.0.1"]))
@example("p@ss/w?rd#", "host")
def test_no_password_of_an_address_is_shown_even_in_part(password: str, host: str) -> None:
    address = f"https://user:{password}x@{host}/path"
    for text in (address, f"cannot reach {address} now"):
        shown = hide(text, ())
        assert f"{HIDDEN}@{host}/path" in shown
        assert "user" not in shown
    assert "user" not in str(without_secrets({"url": address}))


@given(st.text(min_size=8, max_size=30))
def test_a_known_secret_is_hidden_in_each_of_its_forms(secret: str) -> None:
    known = known_secrets({"MY_TOKEN": secret, "MY_TOKENS_FILE": "/tmp"})
    if HIDDEN in secret or secret in HIDDEN:
        return
    for form in (secret, json.dumps(secret), repr(secret), quote(secret, safe="", errors="replace")):
        assert secret not in hide_looks(f"<<{form}>>", known) or secret in "<<>>"
    encoded = base64.b64encode(secret.encode(errors="replace")).decode()
    assert encoded not in hide_looks(f"<<{encoded}>>", known)


def test_words_of_a_command() -> None:
    given = [
        "train.py", "--env.token", "X1", "env.password=y z", "wandb.key=X2", "--api-key=X3",
        "env_kwargs={pwd: X4, a: 1}", "-H", "X-Api-Key: X5", '{"env": {"passphrase": "X 6"}}',
        "http://u:p/X7@h/", "auth.user=X8", "--seed", "3",
        "model=qwen", "env_kwargs.max_tokens=5", "--keep", "all",
    ]  # fmt: skip
    assert hide_in_command(given) == [
        "train.py", "--env.token", HIDDEN, f"env.password={HIDDEN}", f"wandb.key={HIDDEN}", f"--api-key={HIDDEN}",
        f"env_kwargs={{pwd: {HIDDEN}, a: 1}}", "-H", f"X-Api-Key: {HIDDEN}", f'{{"env": {{"passphrase": "{HIDDEN}"}}}}',
        f"http://{HIDDEN}@h/", f"auth.user={HIDDEN}", "--seed", "3", "model=qwen", "env_kwargs.max_tokens=5", "--keep",
        "all",
    ]  # fmt: skip


def test_data() -> None:
    given: dict[str, Any] = {
        "headers": {"Authorization": "Basic x", "Accept": "*"},
        "pairs": [["X-Api-Key", "abc"], ["key", "door"]],
        "auth": True,
        "password": None,
        "db.password": 1234,
        "credentials": {"user": "me", "code": "long-enough"},
        "size": (3, 4),
        "url": "http://u:long-password@h",
    }
    assert without_secrets(given, ()) == {
        "headers": {"Authorization": HIDDEN, "Accept": "*"},
        "pairs": [["X-Api-Key", HIDDEN], ["key", "door"]],
        "auth": True,
        "password": None,
        "db.password": HIDDEN,
        "credentials": HIDDEN,
        "size": (3, 4),
        "url": f"http://{HIDDEN}@h",
    }
    assert {"long-enough", "long-password"} <= {*named_secrets(given)}


def test_documents_and_texts() -> None:
    assert hide_in_document("# password: hunter two\nsize: 3\ntoken:\n  a: 1\n", ()) == (
        f"# password: {HIDDEN}\nsize: 3\ntoken:\n  a: 1\n"
    )
    said = "refused {'api_key': 'a b', \"pwd\": 'c', 'max_tokens': 3}: token=d, key=left, Authorization: Digest e"
    assert hide(said, ()) == (
        f"refused {{'api_key': '{HIDDEN}', \"pwd\": '{HIDDEN}', 'max_tokens': 3}}: token={HIDDEN}, key=left, "
        f"Authorization: Digest {HIDDEN}"
    )


names = st.text(max_size=5) | last_words


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(names, inner), max_leaves=4))
@example({"api_key": "x", "at": "http://u:p@h/?token=x Bearer abc-0123456789 Basic dXNlcjpwdw=="})
def test_hiding_twice_is_hiding_once(value: Any) -> None:
    once = without_secrets(value, ())
    assert without_secrets(once, ()) == once
    text = json.dumps(value)
    assert hide(hide(text, ()), ()) == hide(text, ())
