"""NVIDIA FLARE: an aggregator that one bad site can neither ruin nor stop.

Needs the extra: ``pip install 'outvote[nvflare]'``. Nothing else in outvote imports nvflare.

`aggregator` is the component that a job names, `server_model` compares what a site sent with the
model of the server, and `site_round` collects a round of sites and applies the rule.
"""

try:
    from outvote.nvflare.aggregator import RobustAggregator
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("nvflare"):
        raise
    raise ImportError(
        "outvote.nvflare needs NVIDIA FLARE 2.9 or newer; run: pip install 'outvote[nvflare]'"
    ) from error

__all__ = ["RobustAggregator"]
