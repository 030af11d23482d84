"""The processes that share the coordinates of large gradients, over torch.distributed."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from typing import Any, TypeVar, final

import torch
from torch import Tensor

from outvote.ops.process import CPU

Result = TypeVar("Result")
# The backend of a GPU ends the whole program at its own limit: this long after ours.
GRACE = timedelta(seconds=30)
# The groups that were made, each with the world it is part of: a group has threads and sockets.
_GROUPS: dict[Any, tuple[Any, Any]] = {}


class ProcessLost(RuntimeError):  # noqa: N818  (named like TooManyByzantine)
    """Another process ended, or did not answer in time; an output is whole, or not there."""


@final
class Processes:
    """A group of processes; what they add up is the same in each, to the last bit."""

    def __init__(self, group: Any = None, *, timeout: float = 60.0) -> None:
        """Join; all processes of `group` do so at the same time. None: all there are."""
        from torch import distributed  # Not every build of torch has it.

        if not distributed.is_available() or not distributed.is_initialized():
            raise ValueError(
                "there is no group of processes; call torch.distributed.init_process_group first, "
                "or StreamingAggregator in one process."
            )
        if not timeout > 0:
            raise ValueError(f"timeout must be a positive number of seconds, got {timeout!r}.")
        self.timeout = timeout
        self._distributed = distributed
        ranks = distributed.get_process_group_ranks(group or distributed.group.WORLD)
        backend = distributed.get_backend(group)
        self.rank, self.size = distributed.get_rank(group), len(ranks)
        self.device = torch.device("cuda") if backend == "nccl" else CPU
        self._limit = timedelta(seconds=timeout)
        # With a time limit of its own: a lost process must not be waited for any longer.
        limit = self._limit + (GRACE if backend == "nccl" else timedelta())
        world = distributed.group.WORLD
        key = (id(world), tuple(ranks), limit)
        if key not in _GROUPS:
            made = self._ended_by_others(
                lambda: distributed.new_group(ranks, timeout=limit, backend=backend)
            )
            _GROUPS[key] = (made, world)
        self.group = _GROUPS[key][0]

    def share(self, dim: int) -> slice:
        """Return the coordinates of this process, where all have as many."""
        if dim < self.size:
            raise ValueError(
                f"{self.size} processes cannot share {dim} coordinates; start fewer processes."
            )
        return slice(dim * self.rank // self.size, dim * (self.rank + 1) // self.size)

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all processes, on the CPU."""
        total = values.to(self.device, copy=True).contiguous()
        self._wait(lambda: self._distributed.all_reduce(total, group=self.group, async_op=True))
        return total.cpu()

    def gather(self, own: Tensor) -> Tensor:
        """Return what each process has, ``[processes, *shape]``."""
        all_of_them = own.new_zeros(self.size, *own.shape)
        all_of_them[self.rank] = own
        return self.sum(all_of_them)

    def objects(self, own: Any) -> list[Any]:
        """Return the object (numbers, texts, lists, dicts) of every process."""
        data = torch.tensor(list(json.dumps(own).encode()), dtype=torch.int32)
        lengths = self.gather(torch.tensor(len(data)))
        padded = torch.zeros(int(lengths.max()), dtype=torch.int32)
        padded[: len(data)] = data
        found = self.gather(padded).tolist()
        return [
            json.loads(bytes(text[:length]))
            for text, length in zip(found, lengths.tolist(), strict=True)
        ]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Let all processes reach the end of some work; if it fails in one, raise in all.

        Otherwise the others would wait, or take its next call for this one.
        """
        own: Exception | None = None
        try:
            yield
        except ProcessLost:
            raise
        except Exception as error:  # noqa: BLE001  (raised below)
            own = error
        fault = "" if own is None else str(own) or type(own).__name__
        faults = self.objects(fault)
        if own is not None:
            raise own
        for rank, text in enumerate(faults):
            if text:
                raise ValueError(f"process {rank}: {text}")

    def check_same(self, **settings: Any) -> None:
        """Raise in all processes if they were called in different ways."""
        everybody = self.objects({name: repr(value) for name, value in settings.items()})
        for rank, other in enumerate(everybody):
            for name, value in other.items():
                if everybody[0][name] != value:
                    raise ValueError(
                        f"all processes must have the same {name}, got {everybody[0][name]} in "
                        f"process 0 and {value} in process {rank}."
                    )

    def collected(
        self, pieces: Iterable[tuple[slice, Tensor]], num_pieces: int
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yield the pieces of all processes in the first; in the others yield nothing.

        One of every process at a time: nobody waits longer than for the others' next piece.
        """
        counts = self.gather(torch.tensor(num_pieces))
        iterator = iter(pieces)
        for number in range(int(counts.max())):
            own = next(islice(iterator, 1), None) if number < num_pieces else None
            yield from self._exchanged(own)
        for _ in iterator:  # What comes after the last piece.
            raise AssertionError("there are more pieces than were announced.")

    def _exchanged(self, own: tuple[slice, Tensor] | None) -> Iterator[tuple[slice, Tensor]]:
        piece, values = own or (slice(0, 0), torch.empty(0))
        about = self.gather(torch.tensor([piece.start, piece.stop, values.itemsize]))
        width = int((about[:, 1] - about[:, 0]).max())
        dtype = torch.float64 if bool((about[:, 2] == 8).any()) else torch.float32
        buffer = torch.zeros(width, dtype=dtype, device=self.device)
        buffer[: len(values)] = values
        found = [torch.empty_like(buffer) for _ in range(self.size)] if self.rank == 0 else None
        first = self._distributed.get_process_group_ranks(self.group)[0]
        self._wait(
            lambda: self._distributed.gather(
                buffer, found, dst=first, group=self.group, async_op=True
            )
        )
        for (start, stop, _), each in zip(about.tolist(), found or (), strict=False):
            if start < stop:
                yield slice(start, stop), each[: stop - start].cpu()

    def _wait(self, start: Callable[[], Any]) -> None:
        self._ended_by_others(lambda: start().wait(self._limit))

    def _ended_by_others(self, work: Callable[[], Result]) -> Result:
        try:
            return work()
        except RuntimeError as error:
            why = str(error).partition("\n")[0][:200]
            raise ProcessLost(
                f"process {self.rank} of {self.size} lost another one, or waited {self.timeout:g} "
                f"s for it ({why}); start all processes again, with a larger timeout if one is "
                "only slow."
            ) from error
