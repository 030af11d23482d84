"""What every test shares: the device under test and how hard hypothesis tries."""

import os
from collections.abc import Iterator

# Where other programs want the cores too, threads that spin while they wait cost many times what
# the work does. To be set before they are loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# numpy's own threads spin whatever is set, and only small oracles ask numpy for products.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# The rules, attacks and models that tests write are their own; test_foreign_code.py takes it back.
os.environ.setdefault("OUTVOTE_ALLOW_CODE", "1")

import pytest
import torch
from hypothesis import HealthCheck, settings

# Deadlines are off: the first call of a kernel is slow on any machine, and a shared one is noisy.
settings.register_profile("default", deadline=None)
settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "default")
)


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The device under test: OUTVOTE_TEST_DEVICE, or the CPU."""
    wanted = torch.device(os.environ.get("OUTVOTE_TEST_DEVICE", "cpu"))
    if wanted.type == "cuda" and not torch.cuda.is_available():
        pytest.exit(f"OUTVOTE_TEST_DEVICE is {wanted}, but torch finds no CUDA device.", 2)
    return wanted


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Torch has one thread while the tests of a module run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _threads_stay():
    """Fail a test that leaves another number of threads: sums in later tests would differ."""
    before = torch.get_num_threads()
    yield
    after = torch.get_num_threads()
    torch.set_num_threads(before)
    assert after == before, f"torch has {after} threads after the test, had {before} before"
