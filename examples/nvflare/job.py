"""A federation of six sites in the simulator of NVIDIA FLARE: python job.py WORKSPACE.

One site sends NaN, one the reversed update. The model is learned, and the log names both.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from nvflare.app_common.np.np_model_persistor import NPModelPersistor
from nvflare.app_common.shareablegenerators.full_model_shareable_generator import (
    FullModelShareableGenerator,
)
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather
from nvflare.job_config.api import FedJob
from train_site import TRUTH, TrainSite

from outvote.nvflare import RobustAggregator

NUM_SITES, NUM_ROUNDS = 8, 4


def make_job(workflow: str) -> FedJob:
    """Return the job, with one of two workflows."""
    job = FedJob(name="robust", min_clients=NUM_SITES)
    job.set_app_packages(["outvote"])  # It is installed on the server: do not copy it into the job.
    aggregator = RobustAggregator("gas(multi-krum, num_groups=5)", num_byzantine=2)
    job.to_server(NPModelPersistor(model=[0.0] * len(TRUTH)), id="persistor")
    if workflow == "fedavg":
        job.to_server(FedAvg(num_clients=NUM_SITES, num_rounds=NUM_ROUNDS, aggregator=aggregator))
    else:
        job.to_server(FullModelShareableGenerator(), id="shareable_generator")
        job.to_server(aggregator, id="aggregator")
        controller = ScatterAndGather(
            min_clients=NUM_SITES, num_rounds=NUM_ROUNDS, persistor_id="persistor"
        )
        job.to_server(controller)
    job.to_clients(TrainSite(["site-2"], ["site-4"]), tasks=["train"])
    return job


def main() -> None:
    """Run the job, and print the error of the model and the sites left out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--workflow", choices=("fedavg", "scatter-and-gather"), default="fedavg")
    given = parser.parse_args()
    job = make_job(given.workflow)
    code = job.simulator_run(str(given.workspace), n_clients=NUM_SITES, threads=NUM_SITES)
    if code:
        sys.exit(f"the simulator ended with {code}")
    server = given.workspace / "server" / "simulate_job"
    error = np.abs(np.load(server / "models" / "server.npy") - TRUTH).max()
    print(f"largest error of a weight: {error:.3f}")
    (log,) = server.glob("audit/*/audit.jsonl")
    for line in map(json.loads, log.read_text().splitlines()):
        left_out = [
            f"{each['client']}: {each['reason']}" for each in line["clients"] if "reason" in each
        ]
        print(f"round {line['round']}: {'; '.join(left_out)}")


if __name__ == "__main__":
    main()
