"""Kernels of rules and attacks compiled while the clients train for the first time.

A GPU's kernels are compiled when they are first used, one after the other, which would be most of
the first round of a sweep. Here every rule and attack of a stack is called once on a small matrix,
all in threads: compilers leave Python's lock to others.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import torch

from outvote.attacks.attack import Attack
from outvote.attacks.run_attack import run_attack
from outvote.engine.run_stack import RunStack
from outvote.rules.aggregate import aggregate
from outvote.rules.rule import Rule

MOST_THREADS = 16
# As many coordinates as choose the kernels of large models; the real matrices may fill the memory.
NUM_COORDINATES = 1 << 17
ALIGNED = 16


def warm_up(stack: RunStack, dim: int) -> ThreadPoolExecutor | None:
    """Start to compile what the runs will use on their GPU, and return the threads."""
    if stack.device.type != "cuda" or len(stack.runs) < 2:
        return None
    jobs = small_calls(stack, dim)
    threads = ThreadPoolExecutor(min(MOST_THREADS, len(jobs)), thread_name_prefix="warm-up")
    for job in jobs:
        threads.submit(_quietly, job)
    threads.shutdown(wait=False)
    return threads


def small_calls(stack: RunStack, dim: int) -> list[Callable[[], object]]:
    """Return one call for every rule and attack of the stack."""
    # Kernels for aligned and for other addresses are two.
    small = min(dim, NUM_COORDINATES + dim % ALIGNED)
    shape = (1, stack.runs[0].num_sampled, small)
    rules = {run.rule for run in stack.runs}
    attacks = {run.attack for run in stack.runs}
    calls: list[Callable[[], object]] = [partial(_aggregate, rule, shape, stack) for rule in rules]
    return calls + [partial(_attack, attack, shape, stack) for attack in attacks]


def _aggregate(rule: Rule, shape: tuple[int, int, int], stack: RunStack) -> None:
    num_byzantine = max(0, min(1, rule.max_byzantine(shape[1])))
    aggregate(rule, _rows(shape, stack), num_byzantine=[num_byzantine], seeds=[0], round=1)


def _attack(attack: Attack, shape: tuple[int, int, int], stack: RunStack) -> None:
    is_byzantine = torch.zeros(shape[:2], dtype=torch.bool)
    is_byzantine[:, :1] = True
    run_attack(
        attack,
        _rows(shape, stack),
        is_byzantine.to(stack.device),
        seeds=[0],
        defence=lambda rows, _: (rows.mean(dim=1), None),
        round=1,
    )


def _rows(shape: tuple[int, int, int], stack: RunStack) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator, dtype=stack.test.dtype).to(stack.device)


def _quietly(job: Callable[[], object]) -> None:
    # What fails here fails in the round too, and is reported there.
    with suppress(Exception):
        job()
