"""How fast files are aggregated, in units of a chunked mean of them, and in how much memory.

python benchmarks/bench_files.py --dim 10000000 --folder /some/disk
python benchmarks/bench_files.py --dim 1000000 10000000 --groups 100 1000 --repeats 2 -o new.json

The files are bfloat16, the page cache is warm (a mean is taken first), and writing is not counted.
Processor time is beside the time that passed: on a busy machine the first is the fairer ratio.
"""

import argparse
import threading
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from timing import circumstances, write_json

from outvote.files import StreamingAggregator
from outvote.files.safetensors_file import Entry
from outvote.files.tensor_writer import writing

RULES = ("gas(multi-krum, num_groups={})", "gas(median, num_groups={})")
NUM_TENSORS = 10
AT_ONCE = 1 << 20
LINE = "{:<34}{:>11}{:>9}{:>9}{:>9}{:>9}{:>9}{:>12}"


def main() -> None:
    """Measure and print one table; write it as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, nargs="+", default=[10_000_000])
    parser.add_argument("--groups", type=int, nargs="+", default=[1000])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--byzantine", type=int, default=4)
    parser.add_argument("--rules", nargs="+", default=RULES, help="{} is the number of groups")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--max-memory", default="1.5GB")
    parser.add_argument(
        "--folder", type=Path, help="where files are made; the default is temporary"
    )
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(LINE.format("rule", "dim", "s", "cpu s", "mean s", "/ mean", "cpu /", "anonymous MB"))
    rows: list[dict[str, object]] = []
    for dim in args.dim:
        with TemporaryDirectory(dir=args.folder) as folder:
            paths = [
                make_file(Path(folder) / f"{k:03}.safetensors", dim, k, args.byzantine)
                for k in range(args.clients)
            ]
            texts = dict.fromkeys(text.format(p) for p in args.groups for text in args.rules)
            for _ in range(args.repeats):
                rows += [measure(text, paths, dim, args) for text in texts]
    if args.output:
        keys = ("clients", "byzantine", "threads", "max_memory")
        sizes = {key: getattr(args, key) for key in keys}
        about = circumstances(torch.device("cpu")) | sizes
        write_json(args.output, {"circumstances": about, "rows": rows})


def make_file(path: Path, dim: int, client: int, num_byzantine: int) -> Path:
    """Write the random update of a client; the first are Byzantine, and shifted."""
    generator = torch.Generator().manual_seed(client)
    size = dim // NUM_TENSORS
    entries = {f"layer{k}": Entry((size,), torch.bfloat16) for k in range(NUM_TENSORS)}
    with writing(path, entries, {}) as writer:
        for name in entries:
            for start in range(0, size, AT_ONCE):
                values = torch.randn(min(AT_ONCE, size - start), generator=generator)
                writer.write(name, start, values + 1.5 * (client < num_byzantine))
    return path


def measure(text: str, paths: list[Path], dim: int, args: argparse.Namespace) -> dict[str, object]:
    """Aggregate the files with a rule, between two means."""
    aggregator = StreamingAggregator(
        text, paths, num_byzantine=args.byzantine, seed=0, max_memory=args.max_memory
    )

    def mean() -> None:
        for _, rows in aggregator.chunks():
            rows.mean(dim=0)

    def both_passes() -> None:
        aggregator.verdict()
        for _ in aggregator.update():
            pass

    mean()
    before = timed(mean)
    with Watch() as watch:
        took = timed(both_passes)
    after = timed(mean)
    ratios = [2 * own / (a + b) for own, a, b in zip(took, before, after, strict=True)]
    mean_took = [(a + b) / 2 for a, b in zip(before, after, strict=True)]
    numbers = [f"{number:.2f}" for number in (*took, mean_took[0], *ratios)]
    print(LINE.format(text, dim, *numbers, f"{watch.most / 1e6:.0f}"), flush=True)
    return {
        "rule": text,
        "dim": dim,
        "mean_seconds": mean_took[0],
        "mean_cpu_seconds": mean_took[1],
        "seconds": took[0],
        "cpu_seconds": took[1],
        "ratio": ratios[0],
        "cpu_ratio": ratios[1],
        "anonymous_bytes": watch.most,
        "dropped": aggregator.verdict().dropped,
    }


def timed(work: Callable[[], None]) -> tuple[float, float]:
    """Return the seconds that passed, and those of the processor."""
    start, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - cpu


class Watch:
    """Finds the most anonymous memory of this process during a block."""

    def __enter__(self) -> "Watch":
        self.most, self._is_over = 0, threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._is_over.wait(0.01)
            lines = Path("/proc/self/status").read_text().splitlines()
            found = next(line for line in lines if line.startswith("RssAnon"))
            self.most = max(self.most, int(found.split()[1]) * 1024)


if __name__ == "__main__":
    main()
