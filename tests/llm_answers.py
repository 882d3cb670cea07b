"""What servers that speak the OpenAI API say, worded as each kind does: OpenAI, vLLM, SGLang and llama.cpp."""

import re
import zlib
from typing import Any, Literal

from tests.llm_faults import Json, Reply

Kind = Literal["openai", "vllm", "sglang", "llamacpp"]

MODEL = "test-model"
EOS = 50_000  # the engines return it with the ids and logprobs, not with the text; api.openai.com does not return it
_CHAT = """
messages model audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens
metadata modalities n parallel_tool_calls prediction presence_penalty prompt_cache_key prompt_cache_retention
reasoning_effort response_format safety_identifier seed service_tier stop store stream stream_options temperature
tool_choice tools top_logprobs top_p user verbosity web_search_options
"""
_TEXT = """
model prompt best_of echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream
stream_options suffix temperature top_p user
"""
_KNOWN = {"/v1/chat/completions": set(_CHAT.split()), "/v1/completions": set(_TEXT.split())}  # all that OpenAI takes


def words(text: str) -> list[str]:
    """The tokenizer: words with the space before them; joined, they are the text again."""
    return re.findall(r"\s*\S+|\s+$", text)


def token_id(token: str) -> int:
    return zlib.crc32(token.encode()) % EOS if token else EOS


def logprob(token: int) -> float:
    return -(1 + token % 10) / 10


def _text(content: Any) -> str:
    parts = content if isinstance(content, list) else [{"text": content or ""}]
    return " ".join(part["text"] for part in parts if "text" in part)


def _prompt(body: Json) -> tuple[list[int], str]:
    """The ids of the prompt, and what the reply repeats of it."""
    if "messages" in body:
        said = [(message["role"], _text(message.get("content"))) for message in body["messages"]]
        rendered = "".join(f" <{role}> {text}" for role, text in [*said, ("assistant", "")])
        return [*map(token_id, words(rendered))], next((text for role, text in reversed(said) if role == "user"), "")
    prompt: str | list[int] = next(body[key] for key in ("prompt", "input_ids", "text") if key in body)
    if isinstance(prompt, str):
        return [*map(token_id, words(prompt))], prompt
    return prompt, f"{len(prompt)} tokens"


def _logprobs(kind: Kind, body: Json, tokens: list[str], ids: list[int]) -> Json | None:
    chat = "messages" in body
    if not (asked := body.get("logprobs")) and (chat or asked is None):
        return None
    if body.get("return_tokens_as_token_ids"):
        tokens = [f"token_id:{number}" for number in ids]
    if not chat and kind != "llamacpp":
        scores = [logprob(number) for number in ids]
        offsets = [len("".join(tokens[:place])) for place in range(len(tokens))]
        tops = [{token: score} for token, score in zip(tokens, scores, strict=True)]
        return {"tokens": tokens, "token_logprobs": scores, "text_offset": offsets, "top_logprobs": tops}
    content: list[Json] = []
    for token, number in zip(tokens, ids, strict=True):
        named = {"id": number} if kind == "llamacpp" else {}
        entry = {**named, "token": token, "bytes": [*token.encode()], "logprob": logprob(number)}
        content.append({**entry, "top_logprobs": [entry][: body.get("top_logprobs") or 0]})
    return {"content": content}


def _sample(kind: Kind, body: Json, reply: Reply, subject: str, index: int) -> tuple[list[str], str, str]:
    """The tokens generated, the part of them that is the content, and why they end."""
    usual = f"reply to {subject} ({index})" if index else f"reply to {subject}"
    content = [] if reply.tool_calls else words(usual if reply.text is None else reply.text)
    hidden, ending = [], []
    if kind != "openai":  # the tokens of an engine are all that it sampled
        hidden = words(f"<think> {reply.reasoning} </think>") if reply.reasoning else []
        ending = [word for call in reply.tool_calls for word in words(" ".join(call))]
        if reply.finish_reason != "abort":
            ending.append("")
    tokens = [*hidden, *content, *ending]
    sampling = body.get("sampling_params", body)
    limits = [sampling.get(key) for key in ("max_completion_tokens", "max_tokens", "max_new_tokens")]
    limit = next((limit for limit in limits if limit is not None), len(tokens))
    finish = reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop")
    if limit < len(tokens):
        finish = "length"
    elif finish == "abort":
        limit = len(tokens) // 2
    tokens = tokens[:limit]
    return tokens, "".join(tokens[len(hidden) : len(hidden) + len(content)]), finish


def _message(kind: Kind, reply: Reply, content: str) -> Json:
    message: Json = {"role": "assistant", "content": content}
    if reply.reasoning:
        message["reasoning" if kind == "vllm" else "reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        calls = [{"name": name, "arguments": arguments} for name, arguments in reply.tool_calls]
        message["content"] = None
        message["tool_calls"] = [
            {"id": f"call_{place}", "type": "function", "function": call} for place, call in enumerate(calls)
        ]
    return message


def complete(kind: Kind, number: int, body: Json, reply: Reply, weight_version: str) -> Json:
    """The whole answer to a request of the OpenAI API, as a server of this kind words it."""
    chat = "messages" in body
    prompt, subject = _prompt(body)
    choices: list[Json] = []
    used = 0
    for index in range(body.get("n") or 1):
        tokens, content, finish = _sample(kind, body, reply, subject, index)
        ids = [*map(token_id, tokens)]
        used += len(ids)
        choice: Json = {"index": index, "finish_reason": finish, "logprobs": _logprobs(kind, body, tokens, ids)}
        choice |= {"message": _message(kind, reply, content)} if chat else {"text": content}
        if body.get("return_token_ids") and kind in ("vllm", "sglang"):
            choice["response_token_ids" if kind == "sglang" and chat else "token_ids"] = ids
            if kind == "sglang" or not chat:
                choice["prompt_token_ids"] = prompt
        choices.append(choice)
    usage = {"prompt_tokens": len(prompt), "completion_tokens": used, "total_tokens": len(prompt) + used}
    name = {"object": "chat.completion" if chat else "text_completion", "id": f"{'chat' * chat}cmpl-{number}"}
    response = {**name, "created": 0, "model": body.get("model", MODEL), "choices": choices, "usage": usage}
    if kind == "sglang":
        response["metadata"] = {"weight_version": weight_version}
    if kind == "vllm" and chat and body.get("return_token_ids"):
        response["prompt_token_ids"] = prompt
    return response


def generate(number: int, body: Json, reply: Reply, weight_version: str) -> Json:
    """The whole answer to a request of SGLang's own API."""
    prompt, subject = _prompt(body)
    tokens, content, finish = _sample("sglang", body, reply, subject, 0)
    ids = [*map(token_id, tokens)]
    meta: Json = {"id": f"rid-{number}", "finish_reason": {"type": finish}, "weight_version": weight_version}
    meta |= {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "cached_tokens": 0}
    if body.get("return_logprob"):
        meta["output_token_logprobs"] = [[logprob(one), one, None] for one in ids]
    return {"text": content, "output_ids": ids, "meta_info": meta}


def stream_events(kind: Kind, body: Json, response: Json) -> list[Json]:
    """The same answer a token at a time: the role comes first, usage last; vLLM finishes with its last token."""
    if "choices" not in response:
        return [response]
    chat = "messages" in body
    shared = {key: response[key] for key in ("id", "created", "model")}
    shared["object"] = "chat.completion.chunk" if chat else "text_completion"
    events: list[Json] = []
    for choice in response["choices"]:
        said = choice.get("message", {"content": choice.get("text")})
        pieces, ids = words(said["content"] or ""), choice.get("token_ids") or []
        logprobs = choice["logprobs"] or {}
        count = max(len(pieces), len(ids), *(len(values) for values in logprobs.values()), 0)
        deltas: list[Json] = []
        if chat:
            extra = {key: said[key] for key in ("reasoning", "reasoning_content") if key in said}
            calls = [{"index": place, **call} for place, call in enumerate(said.get("tool_calls", ()))]
            opening = {"role": "assistant", "content": "", **extra, **({"tool_calls": calls} if calls else {})}
            deltas.append({"delta": opening, "logprobs": None})
        for place in range(count):
            piece = "".join(pieces[place : place + 1])
            some = {key: values[place : place + 1] for key, values in logprobs.items()}
            delta = {"delta": {"content": piece}} if chat else {"text": piece}
            deltas.append({**delta, "logprobs": some or None, **({"token_ids": ids[place : place + 1]} if ids else {})})
        if kind != "vllm" or not deltas:
            deltas.append({"delta": {}} if chat else {"text": ""})
        deltas = [{"index": choice["index"], "finish_reason": None, **delta} for delta in deltas]
        deltas[-1]["finish_reason"] = choice["finish_reason"]
        if "prompt_token_ids" in choice:
            deltas[0]["prompt_token_ids"] = choice["prompt_token_ids"]
        events += [{**shared, "choices": [delta]} for delta in deltas]
    if events and "prompt_token_ids" in response:
        events[0]["prompt_token_ids"] = response["prompt_token_ids"]
    if (body.get("stream_options") or {}).get("include_usage"):
        events.append({**shared, "choices": [], "usage": response["usage"]})
    return events


def refusal(kind: Kind, body: Json, path: str) -> str | None:
    """Why a server of this kind would not answer this request."""
    if not body.keys() & {"messages", "prompt", "text", "input_ids"}:
        return "you must provide a prompt or messages"
    unknown = sorted(body.keys() - _KNOWN.get(path, body.keys()))
    if kind == "openai" and unknown:
        return f"Unrecognized request argument{'s' * (len(unknown) > 1)} supplied: {', '.join(unknown)}"
    if kind == "sglang" and "messages" in body and body.get("stream") and body.get("return_token_ids"):
        return "return_token_ids is not supported with streaming on /v1/chat/completions."
    return None


def overflow(kind: Kind, body: Json, path: str, context: int) -> str | None:
    """Why a call does not fit the model's context, in the words of its kind; else its reply ends with the context.

    vLLM reads no more of a text than it must, so that it may not know how long the prompt is.
    """
    size = len(_prompt(body)[0])
    asked: int = body.get("max_completion_tokens") or body.get("max_tokens") or 0
    if kind == "vllm":
        if path == "/v1/completions" and "max_tokens" not in body:
            asked = 16
        if asked > context:
            return f"max_tokens={asked} cannot be greater than max_model_len=max_total_tokens={context}. Please request"
        most = context - asked
        if size > most:
            known = str(size) if isinstance(body.get("prompt"), list) and size > most + 1 else f"at least {most + 1}"
            return (
                f"This model's maximum context length is {context} tokens. However, you requested {asked} output "
                f"tokens and your prompt contains {known} input tokens, for a total of too many. Please reduce the "
                "length of the input prompt or the number of requested output tokens."
            )
    elif size >= context:
        return f"The input ({size} tokens) is longer than the model's context length ({context} tokens)."
    elif size + asked > context:
        return (
            f"Requested token count exceeds the model's maximum context length of {context} tokens. You requested a "
            f"total of {size + asked} tokens: {size} tokens from the input messages and {asked} tokens for the "
            "completion. Please reduce the number of tokens in the input messages or the completion."
        )
    body["max_tokens"] = min(asked or context, context - size)
    body.pop("max_completion_tokens", None)
    return None


_ENGINE_ERRORS = {400: "BadRequestError", 404: "NotFoundError", 429: "RateLimitError"}
_ERRORS: dict[Kind, dict[int, str]] = {
    "openai": {401: "invalid_request_error", 429: "requests"},
    "vllm": _ENGINE_ERRORS,
    "sglang": _ENGINE_ERRORS,
    "llamacpp": {401: "authentication_error", 404: "not_found_error", 503: "unavailable_error"},
}
_CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


def error(kind: Kind, status: int, message: str) -> Json:
    """The error object; SGLang's is not wrapped, and only OpenAI's code is a word."""
    fallback = "invalid_request_error" if status < 500 else "server_error"
    reported = {"message": message, "type": _ERRORS[kind].get(status, fallback), "param": None}
    if kind == "sglang":
        return {"object": "error", **reported, "code": status}
    return {"error": {**reported, "code": _CODES.get(status) if kind == "openai" else status}}
