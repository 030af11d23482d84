"""Aggregation of files: the safetensors files of many clients become one update or model."""

from outvote.files.streaming import StreamingAggregator as StreamingAggregator
