"""Work that shares a GPU with threads in the background."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from outvote.training import gpu_memory


def _fails_once(tries):
    def work():
        tries.append(1)
        if len(tries) == 1:
            raise torch.cuda.OutOfMemoryError
        return "done"

    return work


def test_work_without_memory_is_done_again_when_the_background_has_ended(monkeypatch):
    monkeypatch.setattr(gpu_memory, "_BACKGROUND", [])
    ended, tries = [], []
    threads = ThreadPoolExecutor(1)
    threads.submit(ended.append, 1)
    gpu_memory.add_background(threads)
    assert gpu_memory.beside_background(_fails_once(tries)) == "done"
    assert (len(tries), ended) == (2, [1])


def test_work_without_memory_fails_where_nothing_is_in_the_background(monkeypatch):
    monkeypatch.setattr(gpu_memory, "_BACKGROUND", [])
    with pytest.raises(torch.cuda.OutOfMemoryError):
        gpu_memory.beside_background(_fails_once([]))
