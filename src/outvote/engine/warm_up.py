"""Kernels of layers, rules and attacks compiled side by side, before clients train.

A GPU's kernels are compiled when they are first used, one after the other, which would be most of
the first round of a sweep. Here training and evaluation are called dry: no kernel is launched, all
are compiled at the same time. What rules and attacks do next depends on what they find, so each is
called on a small matrix, in a thread of its own, which waits for its kernels. A kernel that several
of them need, or the round itself, is compiled once.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from itertools import product
from threading import Thread
from typing import NamedTuple, TypeVar

import torch

from outvote.attacks.attack import Attack
from outvote.attacks.run_attack import run_attack
from outvote.engine.local_updates import batches_of
from outvote.engine.run_stack import Run, RunStack
from outvote.ops.compile_once import CompileOnce, compile_once, dry_calls
from outvote.ops.group_kernels import FEW_COORDINATES, LARGEST_UNIT
from outvote.ops.memory import run_index
from outvote.ops.order_statistics import (
    Among,
    mean_nearest_median,
    mean_nearest_median_and_shares,
)
from outvote.ops.precision import plain_torch
from outvote.rules.aggregate import aggregate
from outvote.rules.bulyan import Bulyan, select_one_by_one
from outvote.rules.gas import GAS
from outvote.rules.row_facts import row_facts
from outvote.rules.rule import Rule, Wrapper, is_ours
from outvote.training.gpu_memory import add_background
from outvote.training.trainer import ClientTask

# As many coordinates as choose the kernels of large models; the real matrices may fill the memory.
NUM_COORDINATES = 1 << 17
# Sizes, and addresses in bytes.
ALIGNED = 16
MOST_THREADS = 64
# Of the matrices of all calls that are made at once.
MOST_BYTES = 2 << 30
# As many clients train at once where memory is measured.
FEW_CLIENTS = 4
# Whether two clients send copies, and whether a rule computes distances that were found inexact
# again. Each has kernels of its own, and so have both together.
CASES = tuple(product((False, True), repeat=2))
# By how much of their length two clients differ whose distance is inexact, and how many times as
# long as the others they are.
HARDLY, LONG = 1e-6, 4.0

Call = Callable[[], object]
Part = TypeVar("Part", Rule, Attack)


class Matrix(NamedTuple):
    """A small matrix that stands for the gradients of some runs."""

    shape: tuple[int, int, int]
    start: int
    """How many values its address is beyond an aligned one, as that of these runs is."""


def warm_up(stack: RunStack, dim: int) -> ThreadPoolExecutor | None:
    """Start to compile what the runs will use on their GPU, and return the threads."""
    # Rules need exact products, and so would clients that train in TF32 meanwhile.
    is_exact = getattr(stack.trainer, "precision", "float32") != "tf32"
    if stack.device.type != "cuda" or len(stack.runs) < 2 or not is_exact:
        return None
    calls, shared = small_calls(stack, dim), compile_once()
    # On the host and on the GPU, each call has a matrix of its own.
    at_once = MOST_BYTES // (4 * 2 * stack.runs[0].num_sampled * NUM_COORDINATES)
    num_threads = max(1, min(len(calls), MOST_THREADS, at_once))
    threads = ThreadPoolExecutor(num_threads, thread_name_prefix="warm-up")
    begun: list[Future[None]] = []
    if shared is not None:
        shared.open()
    try:
        if shared is not None:
            _quietly(partial(_order_training, stack, shared))
        begun += [threads.submit(_quietly, call) for call in calls]
    finally:
        if shared is not None:
            Thread(target=_close_after, args=(begun, shared), daemon=True).start()
    threads.shutdown(wait=False)
    add_background(threads)
    return threads


def _order_training(stack: RunStack, shared: CompileOnce) -> None:
    num_before = shared.num_ordered
    with dry_calls():
        for call in training_calls(stack):
            _quietly(call)
            if shared.num_ordered == num_before:  # The cache is full, the others would miss none.
                return


def _close_after(begun: list[Future[None]], shared: CompileOnce) -> None:
    wait(begun)
    shared.close()


def training_calls(stack: RunStack) -> list[Call]:
    """Return calls that use all kernels of training and evaluation."""
    make: Callable[..., list[Call]] = getattr(stack.trainer, "trial_calls", lambda *_: [])
    run, training = stack.runs[0], stack.training
    largest = sorted(run.federation.parts, key=len, reverse=True)[:FEW_CLIENTS]
    drawn = [batches_of(stack, part, run.stream("warm-up"), training) for part in largest]
    tasks = [ClientTask(0, batches) for batches in drawn if batches.num_steps]
    return make(tasks, training, stack.test) if tasks else []


def small_calls(stack: RunStack, dim: int) -> list[Call]:
    """Return calls for every rule of the stack, every attack, and what all rules share."""
    num_sampled = stack.runs[0].num_sampled
    # Kernels for aligned and for other addresses are two, and so are those for strides, which are
    # counted in units of several values.
    small = min(dim, NUM_COORDINATES + dim % (ALIGNED * LARGEST_UNIT))
    per_unit = max(1, ALIGNED // stack.test.dtype.itemsize)

    def matrix(numbers: list[int]) -> Matrix:
        is_view = isinstance(run_index(numbers, stack.device), slice)
        start = numbers[0] * num_sampled * dim % per_unit if is_view else 0
        # Kernels for one run are others.
        return Matrix((min(len(numbers), 2), num_sampled, small), start)

    look = partial(_look, matrix(list(range(len(stack.runs)))), stack)
    slowest: list[Call] = []
    attacks: list[Call] = []
    rules: list[Call] = []
    elsewhere: list[Call] = []
    for attack, numbers in _runs_by(stack, lambda run: run.attack).items():
        is_alone = attack.has_state or attack.needs_rule()
        alike = [[number] for number in numbers] if is_alone else [numbers]
        attacks += [partial(_attack, attack, each, stack) for each in {matrix(k) for k in alike}]
    for rule, numbers in _runs_by(stack, lambda run: run.rule).items():
        whole = matrix(numbers)
        if (shape := _in_bulyan(rule, num_sampled)) is not None:
            inside = whole._replace(shape=(whole.shape[0], shape.num_clients, small))
            slowest += [
                partial(_select, inside, stack),
                partial(_take_nearest, inside, stack, has_groups=shape.has_groups),
            ]
        rules += [partial(_aggregate, rule, whole, stack, *case) for case in CASES]
        # Runs with as many Byzantine clients are one batch, which may begin at any of them.
        starts = {matrix([number]).start for number in numbers} - {whole.start}
        others = [whole._replace(start=start) for start in sorted(starts)]
        elsewhere += [partial(_aggregate, rule, each, stack, *CASES[0]) for each in others]
    return [look, *slowest, *attacks, *rules, *elsewhere]


def _runs_by(stack: RunStack, part: Callable[[Run], Part]) -> dict[Part, list[int]]:
    """Return the numbers of the runs that share a rule or an attack of the library."""
    found: dict[Part, list[int]] = {}
    for number, run in enumerate(stack.runs):
        if _is_ours(part(run)):
            found.setdefault(part(run), []).append(number)
    return found


def _is_ours(part: object) -> bool:
    """Return whether a rule or attack is the library's: a user's would notice a call too many."""
    inner = getattr(part, "rule", None)
    return is_ours(part) and (not isinstance(inner, Rule) or _is_ours(inner))


def _look(matrix: Matrix, stack: RunStack) -> None:
    with plain_torch(stack.device):  # A thread begins with the first GPU as its current one.
        row_facts(_on_device(_rows(matrix, stack), matrix, stack))


def _aggregate(
    rule: Rule, matrix: Matrix, stack: RunStack, has_copies: bool, is_again: bool
) -> None:
    """Call a rule in one of the cases."""
    num_byzantine = max(0, min(1, rule.max_byzantine(matrix.shape[1])))
    rows = _rows(matrix, stack)
    if has_copies:
        rows[:, 1:2] = rows[:, :1]
    if is_again:  # Distances are measured from a client of middle length, so these two are long.
        rows[:, -2:] = LONG * rows[:, -1:]
        rows[:, -1:] *= 1 + HARDLY
    # Known as in a round, and no kernel is waited for to find them.
    facts = row_facts(rows)
    numbers = range(matrix.shape[0])
    aggregate(
        rule,
        _on_device(rows, matrix, stack),
        num_byzantine=[num_byzantine for _ in numbers],
        seeds=numbers,
        round=1,
        facts=facts,
        is_checked_later=not is_again,
    )


class _Inside(NamedTuple):
    """What a rule inside others is given."""

    num_clients: int
    has_groups: bool


def _in_bulyan(rule: Rule, num_clients: int) -> _Inside | None:
    """Return what Bulyan is given, if it is the rule or inside of it."""
    has_groups = False
    while isinstance(rule, Wrapper):
        num_clients = rule.inside_num_clients(num_clients)
        has_groups = has_groups or isinstance(rule, GAS)
        rule = rule.rule
    return _Inside(num_clients, has_groups) if isinstance(rule, Bulyan) else None


def _select(matrix: Matrix, stack: RunStack) -> None:
    """Select as Bulyan does. Its kernels take the longest to compile, and would come last."""
    num_runs, num_clients, _ = matrix.shape
    shape = num_runs, num_clients, num_clients
    with plain_torch(stack.device):
        select_one_by_one(torch.zeros(shape, dtype=torch.float64, device=stack.device), 1, 1)


def _take_nearest(matrix: Matrix, stack: RunStack, *, has_groups: bool) -> None:
    """Average the values nearest to the median, as Bulyan does in the end."""
    columns = _on_device(_rows(matrix, stack), matrix, stack).mT
    if has_groups:  # Groups have the clients side by side, and shares are not wanted.
        width = min(FEW_COORDINATES, max(1, columns.shape[1] // 2))
        columns = columns[:, : 2 * width].contiguous().unflatten(1, (-1, width))
    shape = *columns.shape[:-2], columns.shape[-1]
    among = Among(torch.ones(shape, dtype=torch.bool, device=stack.device), shape[-1])
    with plain_torch(stack.device):
        average = mean_nearest_median if has_groups else mean_nearest_median_and_shares
        average(columns, 1, "mean", among)


def _attack(attack: Attack, matrix: Matrix, stack: RunStack) -> None:
    is_byzantine = torch.zeros(matrix.shape[:2], dtype=torch.bool)
    is_byzantine[:, :1] = True
    run_attack(
        attack,
        _on_device(_rows(matrix, stack), matrix, stack),
        is_byzantine.to(stack.device),
        seeds=range(matrix.shape[0]),
        defence=lambda rows, _: (rows.mean(dim=1), None),
        round=1,
    )


def _rows(matrix: Matrix, stack: RunStack) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(matrix.shape, generator=generator, dtype=stack.test.dtype)


def _on_device(rows: torch.Tensor, matrix: Matrix, stack: RunStack) -> torch.Tensor:
    values = torch.empty(matrix.start + rows.numel(), dtype=rows.dtype, device=stack.device)
    return values[matrix.start :].view(rows.shape).copy_(rows)


def _quietly(call: Call) -> None:
    # What fails here fails in the round too, and is reported there.
    with suppress(Exception):
        call()
