"""Kernels of layers, rules and attacks compiled side by side, before clients train.

A GPU's kernels are compiled when they are first used, one after the other, which would be most of
the first round of a sweep. Here every rule and attack of a stack is called on a small matrix, and
every layer on a few samples, in threads: compilers leave Python's lock to others. A kernel that
several of them need, or the round itself, is compiled by one.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import torch

from outvote.attacks.attack import Attack
from outvote.attacks.run_attack import run_attack
from outvote.engine.run_stack import RunStack
from outvote.kernels.compile_once import compile_once
from outvote.rules.aggregate import aggregate
from outvote.rules.rule import Rule
from outvote.training.gpu_memory import add_background

# As many coordinates as choose the kernels of large models; the real matrices may fill the memory.
NUM_COORDINATES = 1 << 17
ALIGNED = 16
MOST_THREADS = 32
# By how much of their length two clients differ: at random, not at all, hardly.
APART = (None, 0.0, 1e-6)

Call = Callable[[], object]


def warm_up(stack: RunStack, dim: int) -> ThreadPoolExecutor | None:
    """Start to compile what the runs will use on their GPU, and return the threads."""
    # Rules need exact products, and so would clients that train in TF32 meanwhile.
    is_exact = getattr(stack.trainer, "precision", "float32") != "tf32"
    if stack.device.type != "cuda" or len(stack.runs) < 2 or not is_exact:
        return None
    chains = small_calls(stack, dim)
    if not chains:
        return None
    compile_once()
    threads = ThreadPoolExecutor(min(len(chains), MOST_THREADS), thread_name_prefix="warm-up")
    for chain in chains:
        threads.submit(_quietly, chain)
    threads.shutdown(wait=False)
    add_background(threads)
    return threads


def small_calls(stack: RunStack, dim: int) -> list[list[Call]]:
    """Return calls for every kind of layer, and every rule of the stack and its attacks, in chains.

    The calls of a chain share most kernels, and are made one after the other.
    """
    # Kernels for aligned and for other addresses are two.
    small = min(dim, NUM_COORDINATES + dim % ALIGNED)
    shape = (1, stack.runs[0].num_sampled, small)
    layers: list[Call] = getattr(stack.trainer, "small_calls", list)()
    chains = [[call] for call in layers]
    for rule in dict.fromkeys(run.rule for run in stack.runs if _is_ours(run.rule)):
        # There are other kernels for colluding clients, who send copies, and for clients so close
        # that their distances are computed again.
        chains.append([partial(_aggregate, rule, shape, stack, apart) for apart in APART])
    attacks = dict.fromkeys(run.attack for run in stack.runs if _is_ours(run.attack))
    if attacks:
        chains.append([partial(_attack, attack, shape, stack) for attack in attacks])
    return chains


def _is_ours(part: object) -> bool:
    """Return whether a rule or attack is the library's: a user's would notice a call too many."""
    inner = getattr(part, "rule", None)
    is_ours = type(part).__module__.startswith("outvote.")
    return is_ours and (not isinstance(inner, Rule) or _is_ours(inner))


def _aggregate(
    rule: Rule, shape: tuple[int, int, int], stack: RunStack, apart: float | None
) -> None:
    """Call a rule; two clients may differ by a small part of their length alone."""
    num_byzantine = max(0, min(1, rule.max_byzantine(shape[1])))
    rows = _rows(shape, stack)
    if apart is not None:
        rows[:, 1:2] = rows[:, :1] * (1 + apart)
    aggregate(rule, rows, num_byzantine=[num_byzantine], seeds=[0], round=1)


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


def _quietly(chain: list[Call]) -> None:
    for call in chain:
        # What fails here fails in the round too, and is reported there.
        with suppress(Exception):
            call()
