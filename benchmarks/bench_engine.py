"""The simulator on a CPU, beside plain PyTorch and beside ByzFL's own training loop.

python benchmarks/bench_engine.py                          ratios of one run
python benchmarks/bench_engine.py -o benchmarks/results/engine-cpu.json

20 clients, 4 of them Byzantine (LIE), Multi-Krum, small networks on the embedded Fashion-MNIST
images, 5 local steps of 64 images a round, nothing evaluated. The three take turns, each in a
process of its own (the simulator changes how its process keeps memory); a ratio is the median of
those of single turns.
"""

import argparse
import copy
import importlib
import os
import subprocess
import sys
import time
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import torch
from byzfl_side import VERSION, is_inside, load_aggregators, make_environment, python
from timing import circumstances, write_json

import outvote as ov
from outvote.data import load
from outvote.engine.federation import make_federation
from outvote.engine.reference import ReferenceRun
from outvote.engine.round import run_round
from outvote.engine.run_stack import Run
from outvote.engine.simulation import first_state, make_run_stack
from outvote.training.local_sgd import LocalSGD
from outvote.training.samples import ByteImages

CPU = torch.device("cpu")
MODELS = ("mlp", "small-cnn", "leaf-cnn-small")
WARM_UP_SECONDS = 1.5
NUM_CLIENTS, NUM_BYZANTINE, NUM_STEPS = 20, 4, 5
# ByzFL does not clip.
TRAINING = LocalSGD(
    learning_rate=0.05, momentum=0.5, weight_decay=1e-4, max_norm=None, num_steps=NUM_STEPS
)


def main() -> int:
    """Measure all three in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if not is_inside():
        reason = make_environment()
        if reason is None:
            return subprocess.run([python(), *sys.argv], check=False).returncode
        print(f"byzfl {VERSION} could not be installed and is left out: {reason}")
    found = load("fashion-mnist-small")
    facts = {"mean": found.mean, "std": found.std, "device": CPU}
    train = ByteImages(found.train_images, found.train_labels, **facts)
    test = ByteImages(found.test_images, found.test_labels, **facts)
    run = Run(
        federation=make_federation(
            ov.partition_iid(found.train_labels, num_clients=NUM_CLIENTS, seed=0),
            num_byzantine=NUM_BYZANTINE,
        ),
        attack=ov.make_attack("lie"),
        rule=ov.make_rule("multi-krum"),
        seed=0,
        num_sampled=NUM_CLIENTS,
    )
    rows = []
    for name in options.models:
        model = ov.make_model(name, num_classes=10, seed=0)
        jobs = {
            "outvote": partial(ours, run, model, train, test),
            "plain PyTorch": partial(plain, run, model, train),
        }
        if is_inside():
            jobs["ByzFL"] = partial(byzfl_round, run, train, name)
        rows += measured(name, jobs, options.repeats)
    conditions = circumstances(CPU) | {"byzfl": VERSION if is_inside() else None}
    conditions |= {"load": os.getloadavg(), "repeats": options.repeats}
    print(conditions)
    for row in rows:
        print(
            f"{row['model']:15} {row['loop']:15} {row['seconds_per_round']:8.4f} s "
            f"{row['samples_per_second']:10,.0f} /s {row['times_ours']:6.2f} x"
        )
    if options.output:
        write_json(options.output, {"circumstances": conditions, "rows": rows})
    return 0


def measured(model: str, jobs: dict[str, Any], repeats: int) -> list[dict[str, Any]]:
    """Time rounds in turn; the first ones, in which each gets ready, do not count."""
    context = get_context("spawn")
    pipes, seconds = {}, {name: [] for name in jobs}
    for name, make in jobs.items():
        pipes[name], theirs = context.Pipe()
        context.Process(target=answer, args=(make, theirs, pipes[name]), daemon=True).start()
        theirs.close()
        pipes[name].recv()  # Ready: one after the other.
    for _ in range(repeats):
        for name, pipe in pipes.items():
            pipe.send("go")
            seconds[name].append(pipe.recv())
    for pipe in pipes.values():
        pipe.close()
    num_samples = (NUM_CLIENTS - NUM_BYZANTINE) * NUM_STEPS * TRAINING.batch_size
    return [
        {
            "model": model,
            "loop": name,
            "seconds_per_round": median(own),
            "samples_per_second": num_samples / median(own),
            "times_ours": median(
                each / base for each, base in zip(own, seconds["outvote"], strict=True)
            ),
        }
        for name, own in seconds.items()
    ]


def answer(make: Any, pipe: Any, other_end: Any) -> None:
    """Warm up, and then time a round whenever asked, right after one that is not timed."""
    other_end.close()
    job = make()
    start = time.perf_counter()
    while time.perf_counter() - start < WARM_UP_SECONDS:
        job()
    pipe.send("ready")
    try:
        while pipe.recv():
            job()
            start = time.perf_counter()
            job()
            pipe.send(time.perf_counter() - start)
    except EOFError:
        return


def ours(run: Run, model: torch.nn.Module, train: ByteImages, test: ByteImages) -> Any:
    """Return a round of the simulator."""
    stack = make_run_stack(model, train, test, [run], training=TRAINING, num_classes=10)
    state = [first_state([model], train)]

    def one_round() -> None:
        state[0], _ = run_round(stack, state[0], is_evaluated=False)

    return one_round


def plain(run: Run, model: torch.nn.Module, train: ByteImages) -> Any:
    """Return a round of plain loops."""
    reference = ReferenceRun(
        run=run,
        model=copy.deepcopy(model),
        train=train,
        test=train,
        training=TRAINING,
        num_classes=10,
    )
    number = [0]

    def one_round() -> None:
        number[0] += 1
        reference.run_round(number[0], is_evaluated=False)

    return one_round


def byzfl_round(run: Run, train: ByteImages, model: str) -> Any:
    """Return a round as in ByzFL's benchmark: local steps, weights attacked and averaged."""
    load_aggregators()
    framework = importlib.import_module("byzfl.fed_framework")
    models = importlib.import_module("byzfl.fed_framework.models")
    models.our_model = lambda: ov.make_model(model, num_classes=10, seed=0)
    every = {"model_name": "our_model", "device": "cpu", "learning_rate": 0.05}
    every |= {"optimizer_name": "SGD", "optimizer_params": {"momentum": 0.5}}
    every |= {"weight_decay": 1e-4, "milestones": [], "learning_rate_decay": 1.0}

    def loader(part: torch.Tensor) -> torch.utils.data.DataLoader:
        images = train.batch(part).movedim(-1, 1).contiguous()
        dataset = torch.utils.data.TensorDataset(images, train.labels[part])
        return torch.utils.data.DataLoader(dataset, batch_size=64, shuffle=True)

    honest = [
        framework.Client(
            every
            | {"loss_name": "CrossEntropyLoss", "LabelFlipping": False, "nb_labels": 10}
            | {"momentum": 0.5, "training_dataloader": loader(part)}
            | {"store_per_client_metrics": False}
        )
        for part, is_byzantine in zip(
            run.federation.parts, run.federation.is_byzantine, strict=True
        )
        if not is_byzantine
    ]
    attackers = framework.ByzantineClient(
        {"name": "ALittleIsEnough", "f": NUM_BYZANTINE, "parameters": {"tau": 1.5}}
    )
    aggregator = {"name": "MultiKrum", "parameters": {"f": NUM_BYZANTINE}}
    server = framework.Server(
        every
        | {"aggregator_info": aggregator, "pre_agg_list": []}
        | {"test_loader": loader(run.federation.parts[0])}
    )

    def one_round() -> None:
        for client in honest:
            client.compute_model_update(NUM_STEPS)
        weights = [client.get_flat_parameters() for client in honest]
        server.update_model_with_weights(weights + attackers.apply_attack(weights))
        new = server.get_dict_parameters()
        for client in honest:
            client.set_model_state(new)

    return one_round


if __name__ == "__main__":
    sys.exit(main())
