"""What belongs to the process that works: the settings of torch, its cores, its memory.

torch splits every single operation over the cores and waits for the slowest; where another program
wants a core too, that wait is as long as its time slice. Here whole pieces of work go to threads
that run torch and numpy on one core each.
"""

import ctypes
import mmap
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache, lru_cache
from operator import attrgetter
from threading import Barrier, Lock, local
from typing import Any, Generic, TypeVar, cast, overload
from weakref import finalize

import numpy as np
import torch
from torch import Tensor


def work_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the precision that values of `dtype` are worked on in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class plain_torch:  # noqa: N801  (used like a function)
    """Leave the caller's inference mode, gradients, autocast and TF32 behind, and come back.

    Kernels start on the current GPU: it becomes the one that has the values.
    """

    __slots__ = ("device", "modes", "settings")

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.settings = _settings(device.type)
        self.modes: list[AbstractContextManager[Any]] = []

    def __enter__(self) -> None:
        """Leave what is to be left."""
        device, modes = self.device, self.modes
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            modes.append(on_gpu(device))
        if torch.is_inference_mode_enabled():
            modes.append(torch.inference_mode(False))
        if torch.is_autocast_enabled(device.type):
            modes.append(torch.autocast(device.type, enabled=False))
        # Always, and after the inference mode, which turns gradients on where it is left.
        modes.append(torch.no_grad())
        for mode in modes:
            mode.__enter__()
        self.settings.add("products", 1)

    def __exit__(self, *raised: object) -> None:
        """Come back, the last change first."""
        self.settings.add("products", -1)
        while self.modes:
            self.modes.pop().__exit__(None, None, None)


def on_gpu(device: torch.device) -> AbstractContextManager[Any]:
    """Let a GPU be the current one, which kernels start on; a CPU needs nothing."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class exact_products:  # noqa: N801  (used like a function)
    """Keep float32 matrix products in float32 (no TF32, no bfloat16), and restore the setting.

    The setting is one for the whole process: the first to come changes it, the last restores it.
    While anybody needs exact products, they are exact for all.
    """

    __slots__ = ("settings",)
    kind = "products"

    def __init__(self, device: torch.device) -> None:
        self.settings = _settings(device.type)

    def __enter__(self) -> None:
        """Change the setting, unless somebody has."""
        self.settings.add(self.kind, 1)

    def __exit__(self, *raised: object) -> None:
        """Restore the setting, or leave what others need."""
        self.settings.add(self.kind, -1)


class exact_layers(exact_products):  # noqa: N801  (used like a function)
    """Keep convolutions and recurrent layers in float32, too."""

    __slots__ = ()
    kind = "layers"


class fast_products(exact_products):  # noqa: N801  (used like a function)
    """Let float32 products be formed in TF32 where the device has it, and restore."""

    __slots__ = ()
    kind = "fast"


def products_for(precision: str, device: torch.device) -> exact_products:
    """Form float32 products as they are for "float32", else in TF32 where the device has it."""
    return exact_layers(device) if precision == "float32" else fast_products(device)


@contextmanager
def products_in(precision: str, device: torch.device) -> Iterator[None]:
    """Form the products of a network in "float32" (or better), "tf32" or "bfloat16"."""
    is_narrow = precision == "bfloat16"
    with (
        products_for(precision, device),
        torch.autocast(device.type, torch.bfloat16, enabled=is_narrow, cache_enabled=False),
    ):
        yield


class _Settings:
    """The settings of a kind of device, and who needs which."""

    def __init__(self, backends: list[Any]) -> None:
        """Take what has a setting, that of matrix products first."""
        self.backends = backends
        self.lock = Lock()
        self.inside = {"products": 0, "layers": 0, "fast": 0}
        self.saved: list[str] = []

    def add(self, kind: str, number: int) -> None:
        """Count who comes and goes, and change the settings to what all inside need."""
        with self.lock:
            if not any(self.inside.values()):
                self.saved = list(map(attrgetter("fp32_precision"), self.backends))
            self.inside[kind] += number
            if number < 0 < self.inside[kind]:
                return  # Others need the same.
            inside = self.inside
            for k, backend in enumerate(self.backends):
                name = self.saved[k]
                if inside["layers"] or (inside["products"] and k == 0):
                    name = name if name in EXACT else EXACT[0]
                elif inside["fast"] and len(self.backends) > 1:
                    name = "tf32"
                if name != backend.fp32_precision:  # Somebody inside may have changed it.
                    backend.fp32_precision = name


EXACT = ("ieee", "none", "highest")


@cache
def _settings(device: str) -> _Settings:
    """Return the settings of a kind of device; before torch 2.9 there is one for all."""
    if not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        return _settings_of_old_releases()
    cudnn, mkldnn = cast("Any", torch.backends.cudnn), cast("Any", torch.backends.mkldnn)
    if device == "cpu":
        return _Settings([mkldnn.matmul])
    return _Settings([torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn])


@cache
def _settings_of_old_releases() -> _Settings:
    return _Settings([_OldSetting()])


class _OldSetting:
    """The one setting of older releases, under the names of newer ones."""

    names = ("ieee", "highest"), ("tf32", "high")

    @property
    def fp32_precision(self) -> str:
        now = torch.get_float32_matmul_precision()
        return next((new for new, old in self.names if old == now), now)

    @fp32_precision.setter
    def fp32_precision(self, name: str) -> None:
        torch.set_float32_matmul_precision(dict(self.names).get(name, name))


Item = TypeVar("Item")
Result = TypeVar("Result")
Value = TypeVar("Value")
CPU = torch.device("cpu")


_HERE = local()
_LOCK = Lock()


@lru_cache(maxsize=1)
def _pool(num_threads: int) -> ThreadPoolExecutor:
    """Start threads in which torch uses one core each.

    torch keeps the number of cores per thread, and hands the last one set to threads that ask for
    the first time. So all threads are started and set at once, and then the caller's number is set
    again.
    """
    are_ready = Barrier(num_threads + 1)

    def start() -> None:
        torch.get_num_threads()
        torch.set_num_threads(1)
        _HERE.is_worker = True
        are_ready.wait()

    pool = ThreadPoolExecutor(num_threads, "outvote", start)
    for _ in range(num_threads):
        pool.submit(int)
    are_ready.wait()
    torch.set_num_threads(num_threads)
    return pool


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)


def stay_on_one_core() -> None:
    """Let this thread work on one core from now on, and hand no work to others."""
    torch.set_num_threads(1)
    _HERE.is_worker = True


def free_cores() -> None:
    """End the threads among which torch splits operations of this thread; the next one starts them.

    They wait for work by spinning: for 8 ms after an operation each of them takes a core from the
    processes and threads that are to work next. To start them again takes 0.1 ms.
    """
    pause = getattr(_openmp(), "omp_pause_resource_all", None)
    # A fork has no such threads, and would wait for them.
    if pause is not None and os.getpid() == _PROCESS:
        pause(_SOFT)


_SOFT = 1  # Of OpenMP: what a program has set stays.
_PROCESS = os.getpid()


@lru_cache(maxsize=1)
def _openmp() -> ctypes.CDLL:
    """Return the library of torch, where names of the libraries that it uses are found, too."""
    return ctypes.CDLL(torch._C.__file__)


def num_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def may_share() -> bool:
    """Return whether this thread may hand work to others: it is none of them, and has cores."""
    return not getattr(_HERE, "is_worker", False) and torch.get_num_threads() > 1


def mapped(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    device: torch.device = CPU,
    *,
    on_one_core: bool = False,
) -> list[Result]:
    """Return ``[work(item) for item in items]``; on a CPU, on as many cores as torch may use.

    A single item is worked on by all cores, or with `on_one_core` by one, as if there were more:
    then its result is the same to the last bit.
    """
    if device.type != "cpu" or not may_share():
        return [work(item) for item in items]
    # What makes the items may want all cores, and so may a single one.
    waiting: list[Item | None] = list(items)
    if len(waiting) == 1 and not on_one_core:
        return [work(cast("Item", waiting[0]))]

    def run(number: int) -> Result:
        # An item keeps what was worked out about it: let go of it when it is done.
        item, waiting[number] = waiting[number], None
        return work(cast("Item", item))

    with _LOCK:
        pool = _pool(torch.get_num_threads())
    return list(pool.map(run, range(len(waiting))))


class lazy(Generic[Value]):  # noqa: N801  (used like a built-in decorator)
    """Like functools.cached_property, without the lock that Python 3.11 puts around all objects."""

    def __init__(self, work: Callable[[Any], Value]) -> None:
        self.work = work
        self.name = work.__name__
        self.__doc__ = work.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> "lazy[Value]": ...
    @overload
    def __get__(self, owner: object, kind: type) -> Value: ...
    def __get__(self, owner: object | None, kind: type) -> "Value | lazy[Value]":
        """Work the value out and put it in the way of this descriptor."""
        if owner is None:
            return self
        value = self.work(owner)
        # Of two threads that ask at once, both get what the first one found.
        return cast("Value", owner.__dict__.setdefault(self.name, value))


class once(lazy[Value]):  # noqa: N801  (used like a built-in decorator)
    """A lazy attribute that is worked out by one thread while others wait: its owner has a `lock`.

    For what takes much time or memory.
    """

    @overload
    def __get__(self, owner: None, kind: type) -> "lazy[Value]": ...
    @overload
    def __get__(self, owner: object, kind: type) -> Value: ...
    def __get__(self, owner: object | None, kind: type) -> "Value | lazy[Value]":
        """Work the value out, unless another thread has done so."""
        if owner is None:
            return self
        with cast("Any", owner).lock:
            if self.name not in owner.__dict__:
                owner.__dict__[self.name] = self.work(owner)
        return cast("Value", owner.__dict__[self.name])


# torch has a class for what its own allocator refuses. What Triton, cuBLAS, cuDNN and the CPU's
# allocator refuse are plain errors.
_NO_MEMORY = re.compile(
    r"out of memory|_ALLOC(ATION)?_FAILED|bad_alloc|(can't allocate|not enough) memory"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory was too small, of a GPU or of the machine.

    >>> is_out_of_memory(RuntimeError("Triton Error [CUDA]: out of memory"))
    True
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and bool(_NO_MEMORY.search(str(error)))


def fresh(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return memory that holds anything; on a CPU it comes in large pages where there are any.

    Fetching small pages from the system takes three times as long as writing to them; numpy asks
    for large ones, torch does not.
    """
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    size = int(np.prod(shape, dtype=np.int64))
    return torch.from_numpy(np.empty(size * dtype.itemsize, np.uint8)).view(dtype).view(shape)


# Less than this the allocator keeps by itself. Memory is cut in pages of this size.
SMALLEST_KEPT, LARGE_PAGE = 1 << 24, 1 << 21
# Groups of two widths are copied at a time, so that two pieces are kept.
MOST_KEPT = 2
_KEPT: list[mmap.mmap] = []


def scratch(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return memory that holds anything, for values that no caller ever sees.

    On a CPU it is kept when nobody uses it any more, and used again: the system zeroes all new
    memory, which takes longer than to read the gradients. What is kept is marked as free, so that
    the system takes it back as soon as any program needs it.
    """
    num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if device.type != "cpu" or num_bytes < SMALLEST_KEPT or not hasattr(mmap, "MADV_FREE"):
        return fresh(shape, dtype, device)
    memory = _kept(num_bytes)
    array = np.frombuffer(memory, np.uint8, num_bytes)
    finalize(array, _keep, memory).atexit = False
    return torch.from_numpy(array).view(dtype).view(shape)


def _kept(num_bytes: int) -> mmap.mmap:
    """Return memory that was kept if some is of about this size, else new memory."""
    for memory in tuple(_KEPT):
        if num_bytes <= len(memory) <= 2 * num_bytes:
            with suppress(ValueError):  # Another thread was faster.
                _KEPT.remove(memory)
                return memory
    _KEPT.clear()  # Given back before more is asked for.
    size = -(-num_bytes // LARGE_PAGE) * LARGE_PAGE
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{size:,} bytes for copies of gradients: {error}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # A system without large pages.
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _keep(memory: mmap.mmap) -> None:
    """Keep memory that is no longer used, the latest pieces, and let the system take it back."""
    with suppress(OSError):  # A system that cannot: it is not kept.
        memory.madvise(mmap.MADV_FREE)
        _KEPT.append(memory)
        del _KEPT[:-MOST_KEPT]


def on_device(
    values: Sequence[Any], device: torch.device, dtype: torch.dtype | None = None
) -> Tensor:
    """Return a few numbers on a device; `torch.tensor(..., device=...)` would wait for a GPU."""
    return torch.tensor(values, dtype=dtype, device="cpu").to(device, non_blocking=True)


def run_index(numbers: Sequence[int], device: torch.device) -> slice | Tensor:
    """Return the index of some runs: a slice, which copies nothing, if they are consecutive."""
    first, stop = numbers[0], numbers[0] + len(numbers)
    if list(numbers) == list(range(first, stop)):
        return slice(first, stop)
    return on_device(numbers, device)
