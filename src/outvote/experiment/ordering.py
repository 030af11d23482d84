"""Which runs are played together, and what comes first."""

from collections.abc import Hashable, Sequence

from outvote.experiment.dataset_cache import wanted
from outvote.experiment.job import Job, stack_key

Todo = tuple[int, Job]
"""The rounds that are done, and the run."""


def stacks(todo: Sequence[Todo]) -> list[list[Job]]:
    """Return the runs in groups that can be stacked; the most work first.

    Dataset by dataset, because the pictures of one only are on the device.
    """
    groups: dict[Hashable, list[Job]] = {}
    work: dict[Hashable, int] = {}
    for done, job in todo:
        key = (stack_key(job.spec), done)
        groups.setdefault(key, []).append(job)
        for each in (key, wanted(job.spec.data)):
            work[each] = work.get(each, 0) + job.spec.rounds - done
    data = {key: wanted(jobs[0].spec.data) for key, jobs in groups.items()}
    order = list(dict.fromkeys(data.values()))

    def rank(key: Hashable) -> tuple[int, int, int]:
        return -work[data[key]], order.index(data[key]), -work[key]

    return [groups[key] for key in sorted(groups, key=rank)]
