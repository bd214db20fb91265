"""A batch's index arrays onto the device: one copy for all of them, which the host does not wait for."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import torch

from plait.layout import Int64Array


def uploaded(*arrays: Int64Array, device: torch.device) -> list[torch.Tensor]:
    """The 1-D `arrays` (np.int64) as int64 tensors on `device`, valid on the current stream.

    On CUDA they travel through pinned memory of torch's own cache, which keeps a block until the copy out of
    it is done: the next batch cannot overwrite what this one is still sending. HAZARD: the tensors belong to
    the current stream; another stream's work on them must be waited for by it before they are dropped.
    """
    total = sum(len(array) for array in arrays)
    staging = torch.empty(total, dtype=torch.int64, pin_memory=device.type == "cuda")
    np.concatenate([*arrays, np.zeros(0, dtype=np.int64)], out=staging.numpy())
    moved = staging.to(device, non_blocking=True)
    ends = list(accumulate(len(array) for array in arrays))
    return [moved[end - len(array) : end] for array, end in zip(arrays, ends, strict=True)]
