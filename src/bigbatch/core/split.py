"""How a batch becomes micro-batches: a ragged head, then whole micro-batches.

Only sizes are decided here; cutting tensors is left to `bigbatch.training.batches`. The sizes may be Python integers or
scalar integer tensors.
"""

from __future__ import annotations

from typing import Any


def head_size(num_samples: Any, micro_batch_size: int) -> Any:
    """The size of the first micro-batch: what whole micro-batches leave over, or a whole one if nothing is left over.

    The head comes first so that all that follows has one static size and runs in one loop body:

        >>> head_size(10, 4), head_size(8, 4), head_size(3, 4)
        (2, 4, 3)
    """
    return (num_samples - 1) % micro_batch_size + 1


def num_micro_batches(num_samples: int, micro_batch_size: int) -> int:
    return -(-num_samples // micro_batch_size)


def even_size(num_samples: int, micro_batch_size: int) -> int:
    """The least size that makes no more micro-batches: these take as long, and less memory.

    >>> even_size(10, 7), even_size(10, 4), even_size(10, 12)
    (5, 4, 10)
    """
    return -(-num_samples // num_micro_batches(num_samples, micro_batch_size))
