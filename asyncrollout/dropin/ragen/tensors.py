"""verl's own `DataProto`, where the trainer uses it: verl and torch are loaded by then, and by nobody else."""

import sys
from typing import Any

import numpy as np

from asyncrollout.dropin.ragen.data import DataProto


def is_verls(batch: Any) -> bool:
    """Whether a batch is verl's own `DataProto`."""
    protocol = sys.modules.get("verl.protocol")
    return protocol is not None and isinstance(batch, protocol.DataProto)


def to_verl(data: DataProto) -> Any:
    """A batch as verl's own: arrays as tensors on the CPU."""
    import torch  # noqa: PLC0415
    from verl import DataProto as VerlDataProto  # noqa: PLC0415

    return VerlDataProto.from_dict(
        tensors={key: torch.from_numpy(np.ascontiguousarray(column)) for key, column in data.batch.items()},
        non_tensors=dict(data.non_tensor_batch),
        meta_info=data.meta_info,
    )


def as_trainers(data: DataProto) -> Any:
    """A batch as the trainer has them: verl's own, with numbers of single precision, if verl is loaded."""
    if "verl.protocol" not in sys.modules:
        return data
    for key, column in data.batch.items():
        data.batch[key] = column.astype(np.float32) if column.dtype == np.float64 else column
    return to_verl(data)
