"""Partitions: labels in, who owns which sample out."""

from outvote.partition.by_group import partition_by_group
from outvote.partition.dirichlet import partition_dirichlet
from outvote.partition.iid import partition_iid
from outvote.partition.shards import partition_shards

__all__ = ["partition_by_group", "partition_dirichlet", "partition_iid", "partition_shards"]
