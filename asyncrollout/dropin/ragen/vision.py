"""Prompts with a picture, as verl's workers read them: by the image processor of Qwen2-VL and its relatives."""

import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrollout.dropin.ragen.data import objects
from asyncrollout.dropin.ragen.tokens import Message, Truncation, encode_prompts, row_arrays
from asyncrollout.errors import UsageError

_MARK = "<image>"
_FEWEST_PIXELS, _MOST_PIXELS = 256 * 256, 2048 * 2048
_START, _END = "<|vision_start|>", "<|vision_end|>"


def picture_columns(
    tokenizer: Any,
    processor: Any,
    prompts: Sequence[Sequence[Message]],
    pictures: Sequence[NDArray[np.uint8]],
    *,
    width: int,
    truncation: Truncation,
    options: Mapping[str, Any],
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """Arrays and columns of objects: `multi_modal_data` for the model, `multi_modal_inputs` for the trainer."""
    if processor is None:
        raise UsageError("observations are images: give TrajectoryCollector the model's processor")
    images = [_resized(picture) for picture in pictures]
    inputs = [dict(processor.image_processor([image], return_tensors="pt")) for image in images]
    counts = [int(one["image_grid_thw"][0].prod()) // processor.image_processor.merge_size**2 for one in inputs]
    expanded, plain = (
        [_marked(messages, processor.image_token * count) for messages, count in zip(prompts, each, strict=True)]
        for each in (counts, [1] * len(counts))
    )
    rows = encode_prompts(tokenizer, expanded, width=width, truncation=truncation, options=options)
    arrays: dict[str, NDArray[Any]] = {**row_arrays(tokenizer, rows, width)}
    arrays["position_ids"] = np.stack(
        [
            _positions(processor, ids, mask, one["image_grid_thw"])
            for ids, mask, one in zip(arrays["input_ids"], arrays["attention_mask"], inputs, strict=True)
        ]
    )
    return arrays, {
        "raw_prompt_ids": objects(
            encode_prompts(tokenizer, plain, width=width, truncation=truncation, options=options)
        ),
        "multi_modal_data": objects([{"image": [image]} for image in images]),
        "multi_modal_inputs": objects(inputs),
    }


def _positions(processor: Any, ids: NDArray[Any], mask: NDArray[Any], grid: Any) -> NDArray[Any]:
    """In time, height and width; verls that know Qwen3-VL have the place in the text before these."""
    import torch  # noqa: PLC0415
    from verl.models.transformers import qwen2_vl  # noqa: PLC0415

    model, has_text = qwen2_vl, find_spec("verl.models.transformers.qwen3_vl") is not None
    if has_text and "Qwen3VLProcessor" in type(processor).__name__:
        model = import_module("verl.models.transformers.qwen3_vl")
    given = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask), "image_grid_thw": grid}
    seen: NDArray[Any] = model.get_rope_index(processor, **given).numpy()
    if not has_text:
        return seen
    text = np.ones((1, len(ids)), dtype=seen.dtype)
    text[0, mask.astype(bool)] = np.arange(mask.sum())
    return np.concatenate([text, seen])


def _marked(messages: Sequence[Message], tokens: str) -> list[Message]:
    """With the tokens of a picture where its mark is."""
    return [
        {**message, "content": message["content"].replace(_MARK, f"{_START}{tokens}{_END}", 1)} for message in messages
    ]


def _resized(picture: NDArray[np.uint8]) -> Any:
    """A PIL image, with as many pixels as verl-agent's would have."""
    from PIL import Image  # noqa: PLC0415

    image = Image.fromarray(picture)
    pixels = image.width * image.height
    if _FEWEST_PIXELS <= pixels <= _MOST_PIXELS:
        return image
    factor = math.sqrt((_FEWEST_PIXELS if pixels < _FEWEST_PIXELS else _MOST_PIXELS) / pixels)
    return image.resize((int(image.width * factor), int(image.height * factor)))
