"""Made-up results that look like real ones, in memory or as run folders: hundreds in seconds."""

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from outvote.experiment.choosing import Choice, choose
from outvote.experiment.plan import Plan, make_plan, plan_suite
from outvote.experiment.run_spec import to_toml
from outvote.results.audit_log import audit_arrays, to_npz
from outvote.results.folder import CONTENT, RunFolder, Writer, status_bytes
from outvote.results.labels import label
from outvote.results.round import Round
from outvote.results.run import Result, read_result
from outvote.results.schema import DataUsed, Environment, Status, Timing
from outvote.results.series import series_of
from outvote.suites.suite import read_suite

NUM_CLASSES = 10
ENVIRONMENT = Environment(
    outvote="0.1.0",
    python="3.12.4",
    torch="2.13.0",
    numpy="2.3.1",
    system="Linux x86_64",
    device="cpu",
    precision="float32",
    num_threads=2,
    commit="0123456789abcdef0123456789abcdef01234567",
    data=DataUsed(name="made-up", source="nowhere", num_train=6000, num_test=1000, checksum="0a1b"),
)
# How much of the possible accuracy an attack leaves to a rule without GAS.
HARM = {"none": 1.0, "bit-flip": 0.9, "label-flip": 0.95, "lie": 0.55, "min-max": 0.65}


@dataclass(frozen=True)
class Made:
    """A made-up run, before it is a `Result` or a folder."""

    suite: str
    name: str
    spec: Any
    status: Status
    rounds: list[Round]
    timings: list[Timing]
    is_byzantine: np.ndarray

    @property
    def config(self) -> dict[str, Any]:
        """All settings as a config.toml has them."""
        return tomllib.loads(to_toml(self.spec, self.suite))


def made_results(
    suite: str | Mapping[str, Any] = "smoke",
    *,
    seeds: int = 2,
    rounds: int | None = None,
    diverged: tuple[str, ...] = (),
    environment: Environment = ENVIRONMENT,
    parts: tuple[str, ...] = (),
) -> list[Result]:
    """Results of all runs of a suite that is shipped, or of settings of one's own.

    `rounds` is how many each has (default: as many as its settings); runs whose name
    begins with a word of `diverged` have diverged half-way; `parts` are those of the suite that
    are wanted (default: all).
    """
    return [
        Result(
            suite=made.suite,
            name=made.name,
            config=made.config,
            status=made.status,
            environment=environment,
            series=series_of(made.rounds),
            seconds=sum(each.seconds / each.num_runs for each in made.timings),
            num_samples=sum(each.num_samples or 0 for each in made.rounds),
            folder=None,
        )
        for made in made_runs(suite, seeds=seeds, rounds=rounds, diverged=diverged, parts=parts)
    ]


def write_store(
    root: Path,
    suite: str | Mapping[str, Any] = "smoke",
    *,
    seeds: int = 2,
    rounds: int | None = None,
    diverged: tuple[str, ...] = (),
    environment: Environment = ENVIRONMENT,
    parts: tuple[str, ...] = (),
) -> list[Result]:
    """Write the same as run folders below `root`, and read them back."""
    results = []
    for made in made_runs(suite, seeds=seeds, rounds=rounds, diverged=diverged, parts=parts):
        folder = RunFolder(root / made.suite / made.name)
        writer = Writer(folder, to_toml(made.spec, made.suite).encode(), made.name[-12:])
        writer.begin(0, environment)
        for round_, timing in zip(made.rounds, made.timings, strict=True):
            writer.add(round_, timing)
        labels = _random(made.spec).multinomial(
            100, np.full(NUM_CLASSES, 1 / NUM_CLASSES), size=len(made.is_byzantine)
        )
        arrays = audit_arrays(made.rounds, is_byzantine=made.is_byzantine, label_counts=labels)
        writer.end(made.status, to_npz(arrays))
        writer.close()
        results.append(read_result(folder))
    return results


def reseal(path: Path) -> None:
    """Give a run whose files were edited the checksums of what they hold now."""
    status = msgspec.json.decode((path / "status.json").read_bytes(), type=Status)
    files = {name: hashlib.blake2b((path / name).read_bytes(), digest_size=16) for name in CONTENT}
    sums = {name: each.hexdigest() for name, each in files.items()}
    (path / "status.json").write_bytes(status_bytes(status.with_sums(path.name[-12:], sums)))


def made_runs(
    suite,
    *,
    seeds: int,
    rounds: int | None,
    diverged: tuple[str, ...],
    parts: tuple[str, ...] = (),
) -> list[Made]:
    """Make up all runs of a suite, or of some of its parts."""
    plan = _plan(suite, [f"seed={list(range(seeds))}"], parts)
    return [
        _made(plan.suite, f"{spec.label}-{known}", spec, rounds or spec.rounds, diverged)
        for spec, known in zip(plan.specs, plan.hashes, strict=True)
    ]


def _plan(suite: str | Mapping[str, Any], settings: list[str], parts: tuple[str, ...]) -> Plan:
    if isinstance(suite, str):
        return plan_suite(choose(read_suite(suite), Choice(parts=parts)), settings)
    return make_plan(suite, settings, suite="own")


def _made(suite: str, name: str, spec: Any, num_rounds: int, diverged: tuple[str, ...]) -> Made:
    is_diverged = name.startswith(diverged) if diverged else False
    num_done = max(1, num_rounds // 2) if is_diverged else num_rounds
    random = _random(spec)
    members = spec.federation
    num_clients = members.num_clients if members.num_clients != "all" else 40
    is_byzantine = np.zeros(num_clients, dtype=bool)
    num_byzantine = _count(members.byzantine, num_clients)
    is_byzantine[random.choice(num_clients, num_byzantine, replace=False)] = True
    status = Status(
        outcome="diverged" if is_diverged else "finished",
        round=num_done,
        num_rounds=num_rounds,
        reason="the weights are not finite" if is_diverged else "",
    )
    timings = [Timing(round=k + 1, seconds=0.5, num_runs=4, images=1280) for k in range(num_done)]
    rounds = _rounds(spec, num_done, is_byzantine, random)
    return Made(suite, name, spec, status, rounds, timings, is_byzantine)


def _rounds(spec: Any, num_done: int, is_byzantine: np.ndarray, random: Any) -> list[Round]:
    """Accuracy rises to what rule and attack allow; Byzantine clients score higher under GAS."""
    attack, is_gas = label(spec.attack), label(spec.rule).startswith("gas")
    left = HARM.get(attack, 0.7)
    left = 1 - (1 - left) * (0.35 if is_gas else 1) * random.uniform(0.8, 1.2)
    alike = 1.0 if spec.data.partition == "iid" else min(1.0, 0.8 + 0.2 * spec.data.beta)
    top = 0.62 * left * alike + random.normal(scale=0.006)
    steps = np.arange(1, num_done + 1)
    rise = 1 - np.exp(-steps / (0.15 * spec.rounds + 1))
    accuracy = np.clip(0.1 + (top - 0.1) * rise + random.normal(scale=0.01, size=num_done), 0, 1)
    shown = (1.8 if is_gas else 1.15) + (0.4 if spec.data.partition == "iid" else 0.0)
    num_sampled = _count(spec.federation.sampled, len(is_byzantine))
    found = []
    for step in range(num_done):
        clients = np.sort(random.choice(len(is_byzantine), num_sampled, replace=False))
        attacks = is_byzantine[clients]
        scores = random.lognormal(sigma=0.25, size=num_sampled) * np.where(attacks, shown, 1.0)
        kept = clients[np.argsort(np.argsort(scores)) < num_sampled - attacks.sum()]
        norm = 2.0 * 0.995**step
        far = norm * (0.25 if is_gas else 0.6) * (1 + 0.2 * random.normal()) * (1 + attacks.mean())
        found.append(
            Round(
                round=step + 1,
                num_samples=64 * num_sampled,
                loss=float(2.3 * np.exp(-2 * accuracy[step])),
                accuracy=round(float(accuracy[step]), 4)
                if (step + 1) % spec.evaluate_every == 0 or step + 1 == num_done
                else None,
                clients=tuple(clients.tolist()),
                byzantine=tuple(clients[attacks].tolist()),
                num_byzantine_assumed=int(attacks.sum()),
                num_byzantine_used=int(attacks.sum()),
                kept=tuple(kept.tolist()),
                rejected=(),
                scores=tuple(scores.tolist()),
                deviation=float(abs(far)),
                honest_norm=norm,
                byzantine_weight=float(np.isin(kept, clients[attacks]).sum() / max(1, len(kept))),
            )
        )
    return found


def without_weights(result: Result) -> Result:
    """Return the run as if its weights had not been recorded."""
    unknown = np.full(len(result.series), np.nan)
    return replace(result, series=replace(result.series, byzantine_weight=unknown))


def without_kept(result: Result) -> Result:
    """Return the run of a rule that does not report which clients it kept."""
    unknown = np.full(len(result.series), np.nan)
    series = replace(
        result.series, num_kept=unknown, num_kept_byzantine=unknown, byzantine_weight=unknown
    )
    return replace(result, series=series, folder=result.folder and _FolderWithoutKept(result))


class _FolderWithoutKept:
    def __init__(self, result: Result):
        self.path, self._rounds = result.folder.path, result.folder.rounds()

    def rounds(self) -> list[Round]:
        return [replace(each, kept=None) for each in self._rounds]


def _random(spec: Any) -> np.random.Generator:
    return np.random.default_rng(int(spec.hash, 16))


def _count(wanted: float, whole: int) -> int:
    return wanted if isinstance(wanted, int) else int(np.ceil(wanted * whole))
