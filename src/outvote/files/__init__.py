"""Aggregation of files: the safetensors files of many clients become one update or model."""

from outvote.files.processes import ProcessLost as ProcessLost
from outvote.files.sharded import ShardedRule as ShardedRule
from outvote.files.streaming import StreamingAggregator as StreamingAggregator
