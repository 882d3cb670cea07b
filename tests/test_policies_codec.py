"""The OpenAI protocol: what is sent, and that nothing malformed is taken for an answer."""

import base64
import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrollout import Generation, ProviderError, Request, Sampling, Usage, UsageError
from asyncrollout.policies.openai.codec import Mode, ServerKind, StopSequences, decode, encode, stops_of
from asyncrollout.policies.openai.refusals import refusal
from asyncrollout.policies.openai.responses import AbortedReplyError

HELLO = [{"role": "user", "content": "Hello"}]


def sent(
    request: Request | None = None, mode: Mode = "chat", kind: ServerKind = "openai", *, logprobs: bool = True
) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(encode(request or Request(HELLO), "m", mode, kind, logprobs=logprobs))
    return body


def answer(**fields: Any) -> dict[str, Any]:
    """A good answer, but for the fields given."""
    choice = {
        "message": {"role": "assistant", "content": "Hi there"},
        "finish_reason": "stop",
        "logprobs": {"content": [{"token": "Hi", "logprob": -0.5}, {"token": " there", "logprob": -0.25}]},
        **fields,
    }
    return {"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


def read(content: Any, *, logprobs: bool = True) -> Generation:
    return decode(content if isinstance(content, bytes) else json.dumps(content).encode(), logprobs=logprobs)


def test_body_of_a_chat() -> None:
    assert sent() == {"model": "m", "messages": HELLO, "logprobs": True}
    assert sent(logprobs=False) == {"model": "m", "messages": HELLO}


def test_sampling_is_sent_as_far_as_it_is_given() -> None:
    sampling = Sampling(
        temperature=0.0, top_p=0.9, max_tokens=7, stop=("a", "b"), seed=3, extra={"min_p": 0.1, "seed": 4}
    )
    assert sent(Request(HELLO, sampling=sampling), logprobs=False) == {
        "model": "m",
        "messages": HELLO,
        "temperature": 0.0,
        "top_p": 0.9,
        "max_tokens": 7,
        "stop": ["a", "b"],
        "seed": 4,
        "min_p": 0.1,
    }


def test_expert_session_and_data_are_never_sent() -> None:
    request = Request(HELLO, session="secret-session", turn=3, expert="secret-expert", data="secret-data")
    assert "secret" not in json.dumps(sent(request))


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("openai", {}),
        ("vllm", {"return_token_ids": True}),
        ("sglang", {"return_token_ids": True, "return_prompt_token_ids": True}),
        ("llamacpp", {"stream": True, "stream_options": {"include_usage": True}}),
    ],
)
def test_fields_that_only_some_servers_know(kind: ServerKind, fields: dict[str, Any]) -> None:
    assert sent(kind=kind) == {"model": "m", "messages": HELLO, "logprobs": True, **fields}


def test_prompt_of_a_completion() -> None:
    assert sent(Request(prompt_ids=[1, 2]), "completions") == {"model": "m", "prompt": [1, 2], "logprobs": 1}
    assert sent(Request(HELLO), "completions")["prompt"] == "Hello"
    with pytest.raises(UsageError, match="prompt_ids"):
        sent(Request(HELLO * 2), "completions")
    texts = [{"role": "user", "content": ["Hello", {"type": "text", "text": "there"}]}]
    assert sent(Request(texts, [1, 2]), "completions")["prompt"] == [1, 2]
    for picture in (np.zeros((4, 6, 3), np.uint8), {"type": "image_url", "image_url": {"url": "data:"}}):
        with pytest.raises(UsageError, match="cannot send pictures"):
            sent(Request([{"role": "user", "content": [picture]}], [1, 2]), "completions")


@pytest.mark.parametrize("wrap", [lambda picture: picture, lambda picture: {"type": "image", "image": picture}])
def test_pictures_are_sent_as_png(wrap: Any) -> None:
    picture = np.zeros((4, 6, 3), np.uint8)
    message = {"role": "user", "content": ["What is it?", wrap(picture), {"type": "text", "text": "Say."}]}
    text, image, last = sent(Request([message]))["messages"][0]["content"]
    assert text == {"type": "text", "text": "What is it?"}
    assert image["type"] == "image_url"
    assert image["image_url"]["url"].startswith("data:image/png;base64,iVBORw0KGgo")
    assert last == {"type": "text", "text": "Say."}


@pytest.mark.parametrize(
    ("file", "kind"), [(b"\xff\xd8\xff\xe0", "jpeg"), (b"GIF89a", "gif"), (b"RIFF....WEBPVP8", "webp")]
)
def test_files_of_pictures_are_sent_as_they_are(file: bytes, kind: str) -> None:
    ((part,),) = (message["content"] for message in sent(Request([{"role": "user", "content": [file]}]))["messages"])
    assert part["image_url"]["url"] == f"data:image/{kind};base64,{base64.b64encode(file).decode()}"
    with pytest.raises(UsageError, match="PNG, JPEG, GIF or WebP"):
        sent(Request([{"role": "user", "content": [b"RIFF....WAVE"]}]))


def test_answer_of_a_chat() -> None:
    assert read(answer()) == Generation("Hi there", logprobs=[-0.5, -0.25], usage=Usage(3, 2))


def test_token_ids_of_each_kind_of_server() -> None:
    vllm = {**answer(token_ids=[5, 6]), "prompt_token_ids": [1, 2, 3]}
    assert (read(vllm).token_ids, read(vllm).prompt_ids) == ([5, 6], [1, 2, 3])
    entries = [{"token": "Hi", "logprob": -0.5, "id": 5}, {"token": " there", "logprob": -0.25, "id": 6}]
    assert read(answer(logprobs={"content": entries})).token_ids == [5, 6]


@pytest.mark.parametrize(
    ("fields", "stops", "early"),
    [
        ({"stop_reason": None}, StopSequences(("x",)), False),
        ({"stop_reason": "x"}, StopSequences(("x",)), True),
        ({"stop_reason": 7}, StopSequences(("x",), (7,)), True),
        ({"stop_reason": 7}, StopSequences(("x",)), False),
        ({"matched_stop": 7}, StopSequences(), False),
        ({"matched_stop": "x"}, StopSequences(("x",)), True),
        ({}, StopSequences(("x",)), True),
        ({}, StopSequences((), (7,)), True),
        ({}, StopSequences(), False),
        ({"finish_reason": "length"}, StopSequences(("x",)), False),
        ({"finish_reason": "tool_calls", "stop_reason": "x"}, StopSequences(("x",)), True),
    ],
)
def test_where_a_reply_stopped(fields: dict[str, Any], stops: StopSequences, early: bool) -> None:
    content = json.dumps(answer(**fields)).encode()
    assert decode(content, logprobs=True, stops=stops).stopped_early == early


def test_all_texts_and_tokens_to_stop_at() -> None:
    given = Sampling(stop=("a",), extra={"stop": "b", "stop_token_ids": [1]}), Sampling(extra={"stop": ["c"]})
    assert stops_of(*given) == StopSequences(("a", "b", "c"), (1,))
    assert stops_of(Sampling()) == StopSequences()


@pytest.mark.parametrize("message", [{"message": {"content": ""}}, {"message": None, "text": ""}])
def test_llamacpp_ends_at_once_without_telling_a_token(message: dict[str, Any]) -> None:
    usage = {"usage": {"prompt_tokens": 3, "completion_tokens": 1}}
    content = json.dumps({**answer(**message, logprobs=None), **usage}).encode()
    found = decode(content, logprobs=True, kind="llamacpp")
    assert (found.token_ids, found.logprobs) == ([], [])
    assert decode(content, logprobs=True, kind="llamacpp", stops=StopSequences(("x",))).token_ids is None
    assert decode(content, logprobs=True, kind="openai").token_ids is None
    assert decode(content, logprobs=False, kind="llamacpp").logprobs is None


def test_answer_of_a_completion() -> None:
    choice = {"text": "Hi", "finish_reason": "length", "logprobs": {"tokens": ["Hi"], "token_logprobs": [-0.5]}}
    assert read({"choices": [choice]}) == Generation("Hi", "length", logprobs=[-0.5])


def test_reasoning_and_tool_calls_are_kept() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"content": None, "reasoning_content": "hm", "tool_calls": [call]}
    generation = read(answer(message=message, finish_reason="tool_calls", logprobs=None))
    assert (generation.text, generation.reasoning, generation.tool_calls) == ("", "hm", [call])
    assert generation.finish_reason == "tool_calls"


def stream(*events: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


def part(text: str, number: int) -> dict[str, Any]:
    entry = {"token": text, "logprob": -0.5, "id": number}
    return {"choices": [{"delta": {"content": text}, "logprobs": {"content": [entry]}, "finish_reason": None}]}


END = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
TOTAL = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


def test_stream_adds_up_to_an_answer() -> None:
    whole = stream(part("Hi", 5), part(" there", 6), END, TOTAL) + b"data: [DONE]\n\n"
    assert read(whole) == Generation("Hi there", token_ids=[5, 6], logprobs=[-0.5, -0.5], usage=Usage(3, 2))


def test_tool_calls_of_a_stream() -> None:
    def calls(**function: str) -> dict[str, Any]:
        return {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": function}]}}]}

    whole = stream(calls(name="f", arguments='{"a"'), calls(arguments=": 1}"), END) + b"data: [DONE]\n\n"
    (call,) = read(whole, logprobs=False).tool_calls
    assert call == {"id": None, "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "malformed"),
        (b"not json", "malformed"),
        (b'{"choices": [{"message": {"con', "malformed"),
        ({"choices": []}, "it has 0 choices"),
        ({"choices": answer()["choices"] * 2}, "it has 2 choices"),
        ({}, "malformed"),
        (answer(finish_reason=None), "its finish reason is None"),
        (answer(finish_reason="bored"), "its finish reason is 'bored'"),
        (answer(message=None), "neither a message nor a text"),
        (answer(message={"content": 5}), "malformed"),
        (answer(token_ids=[2**31]), "malformed"),
        (answer(stop_reason=["<end>"]), "malformed"),
        (answer(logprobs=None), r"logprobs were requested.* \(policy.logprobs: false\)"),
        (answer(token_ids=[5]), "it has 1 token ids and 2 logprobs"),
        (answer(logprobs={"content": [{"logprob": 0.5}]}), "a logprob is above 0"),
        (answer(logprobs={"content": [{"logprob": "low"}]}), "malformed"),
        (stream(part("Hi", 5), END), "the stream was cut off"),
        (stream(part("Hi", 5)) + b"data: {\n\ndata: [DONE]\n\n", "malformed"),
        ({"choices": [{"text": "Hi", "finish_reason": "stop", "logprobs": {"token_logprobs": [None]}}]}, "is missing"),
    ],
)
def test_malformed_answers(content: Any, why: str) -> None:
    with pytest.raises(ProviderError, match=why) as caught:
        read(content)
    assert str(caught.value).startswith("malformed response: ")
    assert len(str(caught.value)) < 1_000


def test_long_nonsense_is_clipped() -> None:
    with pytest.raises(ProviderError) as caught:
        read(b"x" * 1_000_000)
    assert len(str(caught.value)) < 600


@given(
    st.binary() | st.recursive(st.none() | st.text() | st.floats() | st.integers(), st.lists).map(msgspec.json.encode)
)
def test_no_content_raises_anything_else(content: bytes) -> None:
    with pytest.raises(ProviderError):
        read(content)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"error": {"message": "no such model", "type": "x"}}', "no such model"),
        (b'{"error": "busy"}', "busy"),
        (b'{"message": "bad field"}', "bad field"),
        (b'{"detail": [{"loc": ["body"]}]}', "[{'loc': ['body']}]"),
        (b"<html>Bad gateway</html>", "'<html>Bad gateway</html>'"),
        (b"", "''"),
    ],
)
def test_what_a_server_says(content: bytes, said: str) -> None:
    assert refusal(content) == said


def test_tokens_without_a_text_are_known_whole_or_not_at_all() -> None:
    quiet = {"content": "", "reasoning_content": "hm"}
    assert read(answer(message=quiet, logprobs=None, token_ids=[1, 2, 3])).token_ids is None
    assert read(answer(message=quiet, logprobs=None)).logprobs is None
    empty = read(answer(message=quiet, logprobs=None, token_ids=[]))
    assert (empty.token_ids, empty.logprobs) == ([], [])


def entries(*tokens: str) -> dict[str, Any]:
    return {"content": [{"token": token, "bytes": [*token.encode()], "logprob": -0.5} for token in tokens]}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"logprobs": {"content": []}}, "logprobs were requested"),
        ({"logprobs": entries("Hi")}, "of another text"),
        ({"token_ids": [-1, 2]}, "malformed"),
        ({"logprobs": {"content": [{"logprob": -1, "bytes": [300]}]}}, "malformed"),
    ],
)
def test_tokens_that_do_not_belong_to_the_text(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ProviderError, match=why):
        read(answer(**fields))


def test_tokens_of_the_text_and_more() -> None:
    assert read(answer(logprobs=entries("Hi", " there", "<|im_end|>"))).logprobs == [-0.5] * 3
    assert read(answer(message={"content": "é"}, logprobs=entries("é"))).logprobs == [-0.5]


SPECIAL = entries("<think>", "hm", "</think>", "<|im_end|>")
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize("silent", [{"content": None}, {"content": ""}, {}])
@pytest.mark.parametrize("ids", [{}, {"token_ids": [5, 6]}, {"response_token_ids": [5, 6]}])
def test_no_text_with_logprobs_of_another_one(silent: dict[str, Any], ids: dict[str, Any]) -> None:
    for reported in (entries("Hi", " there"), entries("<answer>Up</answer>", "")):
        with pytest.raises(ProviderError, match="its logprobs are those of another text"):
            read(answer(message=silent, logprobs=reported, **ids))
    with pytest.raises(ProviderError, match="its logprobs are those of another text"):
        read(answer(message=None, text="", logprobs={"tokens": ["Hi", " there"], "token_logprobs": [-1, -1]}, **ids))
    named = {"content": [{**entry, "id": 5} for entry in entries("Hi", " there")["content"]]}
    with pytest.raises(ProviderError, match="its logprobs are those of another text"):
        read(answer(message=silent, logprobs=named))


def test_token_ids_of_another_text() -> None:
    with pytest.raises(ProviderError, match="its logprobs are those of another text"):
        read(answer(logprobs=entries("Bye", " now"), token_ids=[5, 6]))


@pytest.mark.parametrize(
    ("fields", "stops"),
    [
        ({"message": {"content": None, "tool_calls": [CALL]}, "finish_reason": "tool_calls"}, StopSequences()),
        ({"message": {"content": None, "reasoning_content": "Hi there"}, "finish_reason": "length"}, StopSequences()),
        ({"message": {"content": None, "reasoning": "Hi there"}}, StopSequences()),
        ({"message": {"content": None}, "finish_reason": "content_filter"}, StopSequences()),
        ({"message": {"content": None}, "logprobs": entries("<|im_end|>")}, StopSequences()),
        ({"message": {"content": ""}, "logprobs": entries("\n\n", "</s>")}, StopSequences()),
        ({"message": {"content": None}, "logprobs": SPECIAL}, StopSequences()),
        ({"message": {"content": None}, "logprobs": entries("token_id:5", "token_id:6")}, StopSequences()),
        ({"message": {"content": None}, "logprobs": {"content": [{"logprob": -1}]}}, StopSequences()),
        ({"message": {"content": ""}, "logprobs": entries("Hi", " there")}, StopSequences(("Hi",))),
        ({"message": {"content": ""}, "logprobs": entries(" Hi", " there")}, StopSequences(("Hi",))),
        ({"message": {"content": ""}, "logprobs": entries("\n", "Hi")}, StopSequences(("\n",))),
        ({"message": {"content": ""}, "stop_reason": "Hi"}, StopSequences()),
        ({"logprobs": entries("<think>", "hm", "</think>", "Hi", " there", "<|im_end|>")}, StopSequences()),
        ({"logprobs": entries("Hi", "<|sep|>", " there")}, StopSequences()),
        ({"logprobs": entries("Hi", " there", " Bye")}, StopSequences((" Bye",))),
        ({"logprobs": entries("\u0120Hi", "\u0120there")}, StopSequences()),
        ({"logprobs": entries("token_id:5", "token_id:6")}, StopSequences()),
        ({"message": {"content": "\N{GRINNING FACE}"}, "logprobs": entries("\ufffd", "\ufffd")}, StopSequences()),
        ({"message": {"content": "Hi", "tool_calls": [CALL]}, "logprobs": entries("<call>", "f")}, StopSequences()),
    ],
)
@pytest.mark.parametrize("with_ids", [True, False])
def test_tokens_that_cannot_be_held_against_a_text(
    fields: dict[str, Any], stops: StopSequences, with_ids: bool
) -> None:
    given = answer(**fields)
    reported = given["choices"][0]["logprobs"]["content"]
    if with_ids:
        given["choices"][0]["token_ids"] = [*range(len(reported))]
    generation = decode(json.dumps(given).encode(), logprobs=True, stops=stops)
    assert generation.logprobs == [entry["logprob"] for entry in reported]
    assert (generation.token_ids is not None) == with_ids


def test_aborted_reply_is_none() -> None:
    with pytest.raises(AbortedReplyError, match="the server aborted the reply"):
        read(answer(finish_reason="abort"))
    assert read(answer(finish_reason="content_filter")).finish_reason == "abort"


@pytest.mark.parametrize(
    "content",
    [
        b'{"x": ' + b"[" * 100_000,
        b'{"choices": [], "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"choices": "\xff\xfe"}',
        b"data: \xff\n\ndata: [DONE]\n\n",
        b"data: [DONE]\n\n",
        b'data: {"choices": [{"delta": {"tool_calls": [{"index": [], "function": "f"}]}}]}\n\ndata: [DONE]\n\n',
        b'data: {"choices": [{"index": 1, "delta": {"content": "a"}}]}\n\ndata: [DONE]\n\n',
        b'{"choices": [], "usage": {"prompt_tokens": -1}}',
    ],
    ids=[
        "deep",
        "deep and closed",
        "no utf-8",
        "no utf-8 stream",
        "nothing",
        "tool calls",
        "second choice",
        "negative",
    ],
)
def test_bytes_that_make_no_sense_are_malformed_and_nothing_else(content: bytes) -> None:
    with pytest.raises(ProviderError, match="malformed response"):
        read(content)
    assert isinstance(refusal(content), str)


def test_comments_and_empty_lines_of_a_stream_are_skipped() -> None:
    content = stream(part("Hi", 5), END)
    assert read(b"\n: ping\n\n" + content + b"data: [DONE]\n\n").text == "Hi"


def test_streamed_completion_has_its_logprobs() -> None:
    events = [
        {"choices": [{"text": "Hi", "logprobs": {"tokens": ["Hi"], "token_logprobs": [-0.5]}}]},
        {"choices": [{"text": "", "finish_reason": "stop"}]},
    ]
    content = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"
    assert read(content).logprobs == [-0.5]
