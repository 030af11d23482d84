"""Which networks do nothing but what their classes say, and which are made of known layers.

A trainer that computes a network in another way than by calling it sees no hook, no replaced method
and no parametrisation, and must not need them: it takes a network only if there are none.
"""

from collections.abc import Collection

from torch import nn
from torch.nn.modules import module as torch_module

from outvote.models.parts import Branches, CausalAttention, GlobalAverage, Positions, Residual

CONTAINERS = (nn.Sequential, nn.ModuleList, Residual, Branches, CausalAttention)
"""Layers whose parameters are all those of their parts."""
LAYERS = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding, Positions),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm, nn.LayerNorm),
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU),
    *(nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Hardtanh, nn.Hardswish, nn.Identity),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d),
    *(nn.Flatten, nn.Unflatten, GlobalAverage),
)
"""Layers without parts, which draw nothing at random and use all of their parameters."""
_NAMES = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_PARAMETER_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


class NotAcceptedError(ValueError):
    """A trainer cannot train a network as plain PyTorch does; the text says why, in one line."""


def check_no_hooks(module: nn.Module) -> None:
    """Refuse a network in which code runs besides the methods of its classes."""
    if torch_module._has_any_global_hook():
        raise NotAcceptedError("there are hooks for all modules")
    for name, part in module.named_modules():
        kind = type(part)
        if any(vars(part).get(hooks) for hooks in _HOOKS):
            raise NotAcceptedError(f"{_named(name, kind)} has hooks")
        for key in vars(part):
            if callable(getattr(kind, key, None)):
                raise NotAcceptedError(f"{_named(name, kind)} has a method {key} of its own")
    for name, parameter in module.named_parameters():
        if any(getattr(parameter, hooks, None) for hooks in _PARAMETER_HOOKS):
            raise NotAcceptedError(f"the parameter {name} has hooks")
        if type(parameter) is not nn.Parameter:
            raise NotAcceptedError(f"the parameter {name} is a {type(parameter).__name__}")


def check_known(module: nn.Module, layers: Collection[type[nn.Module]]) -> None:
    """Refuse a network that is not made of some kinds of layers, each exactly as its class is."""
    check_no_hooks(module)
    for name, part in module.named_modules():
        kind = type(part)
        if kind not in layers and kind not in CONTAINERS:
            raise NotAcceptedError(f"{_named(name, kind)} is not one of the known layers")
        own = part._parameters.keys() | part._buffers.keys()
        parts = part._modules.keys()
        if own if kind in CONTAINERS else own - _NAMES | parts:
            raise NotAcceptedError(f"{_named(name, kind)} has parameters or parts of its own")
        if isinstance(part, nn.Embedding) and part.max_norm is not None:
            raise NotAcceptedError(f"{_named(name, kind)} has a max_norm")
    all_of_them = list(module.named_parameters(remove_duplicate=False))
    for name, parameter in all_of_them:
        if not parameter.requires_grad:
            raise NotAcceptedError(f"the parameter {name} is frozen")
    if len({id(parameter) for _, parameter in all_of_them}) < len(all_of_them):
        raise NotAcceptedError("there are tied parameters")


def _named(name: str, kind: type) -> str:
    return f"the layer {name} ({kind.__name__})" if name else f"the network ({kind.__name__})"
