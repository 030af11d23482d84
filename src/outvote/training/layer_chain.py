"""The loss and the gradient of a plain chain of layers, without autograd.

A step of a small network on a CPU is some twenty operations of a few microseconds each. To record
them, to find the next one and to add every gradient to zeros takes autograd as long. Here the
operations that it would call are called directly. The gradients have the same bits but for unusual
layouts, such as a batch of one or channels last, where the last bit may differ.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outvote.data.array_dataset import IGNORED

_aten: Any = torch.ops.aten
_MEAN = 1  # What torch calls the mean over a batch.
# New memory of torch on a CPU begins at a multiple of this.
ALIGNMENT = 64


def is_chain(module: nn.Module, inputs: Tensor, targets: Tensor) -> bool:
    """Return whether a network of known layers is a chain that predicts one class per sample."""
    if type(module) is not nn.Sequential or targets.dim() != 1 or targets.dtype != torch.int64:
        return False
    values = inputs
    for layer in module:
        if not _is_known(layer, values.dim()):
            return False
        with torch.no_grad():
            values = layer(values)
    return values.dim() == 2 and any(True for _ in module.parameters())


def _is_known(layer: nn.Module, num_axes: int) -> bool:
    """Return whether a layer has a form below, for inputs with so many axes."""
    if type(layer) is nn.ReLU:
        return True
    if type(layer) is nn.Flatten:
        return num_axes > 1 and (layer.start_dim, layer.end_dim) == (1, -1)
    if type(layer) is nn.Linear:
        return num_axes == 2 and layer.bias is not None
    if type(layer) is nn.MaxPool2d:
        return num_axes == 4 and not layer.return_indices
    if type(layer) is nn.Conv2d:
        is_plain = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        return num_axes == 4 and is_plain and layer.bias is not None
    return False


@final
class LayerChain:
    """A network that is trained with cross entropy."""

    def __init__(self, module: nn.Module) -> None:
        """Take a network that is a chain; every parameter has a tensor for its gradient."""
        layers = _relu_late(list(module.children()))
        self._layers = [_KINDS[type(layer)](layer) for layer in layers]
        first = next(k for k, layer in enumerate(layers) if list(layer.parameters()))
        # Nobody needs the gradient of the samples.
        self._layers[first].needs_input_gradient = False
        self._trained = self._layers[first:]
        self._one = next(module.parameters()).new_ones(())

    @torch.no_grad()
    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of a batch, and overwrite the gradients of all parameters."""
        values = inputs
        for layer in self._layers:
            values = layer.forward(values)
        values = torch.log_softmax(values, dim=1)
        facts = targets, None, _MEAN, IGNORED
        loss: Tensor
        loss, weight = _aten.nll_loss_forward.default(values, *facts)
        gradient = _aten.nll_loss_backward.default(self._one, values, *facts, weight)
        gradient = torch._log_softmax_backward_data(gradient, values, 1, values.dtype)
        for layer in reversed(self._trained):
            gradient = layer.backward(gradient)
        return loss


def _relu_late(layers: list[nn.Module]) -> list[nn.Module]:
    """Return the layers with every ReLU behind max pooling and flattening: it sees fewer values.

    It is monotone, so pooling finds the same values. Where the largest value of a window is
    positive, it is found at the same place; where not, the gradient is 0 either way.
    """
    found = list(layers)
    for k in range(len(found) - 1):
        if type(found[k]) is nn.ReLU and _commutes(found[k + 1]):
            found[k], found[k + 1] = found[k + 1], found[k]
    return found


def _commutes(layer: nn.Module) -> bool:
    """Return whether a ReLU may come after a layer instead of before it.

    A window with gaps may have padding alone, whose largest value is negative infinity.
    """
    if type(layer) is nn.MaxPool2d:
        return layer.dilation in (1, (1, 1))
    return type(layer) is nn.Flatten


class _Layer(ABC):
    needs_input_gradient = True

    @abstractmethod
    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs of a batch, and keep what `backward` needs."""

    @abstractmethod
    def backward(self, gradient: Tensor) -> Tensor:
        """Overwrite the gradients of the parameters, and return that of the inputs."""


@final
class _Flatten(_Layer):
    def __init__(self, layer: nn.Flatten) -> None:
        del layer

    def forward(self, inputs: Tensor) -> Tensor:
        self._shape = inputs.shape
        return inputs.flatten(1)

    def backward(self, gradient: Tensor) -> Tensor:
        return gradient.view(self._shape)


@final
class _ReLU(_Layer):
    def __init__(self, layer: nn.ReLU) -> None:
        del layer

    def forward(self, inputs: Tensor) -> Tensor:
        self._outputs = inputs.relu_()
        return self._outputs

    def backward(self, gradient: Tensor) -> Tensor:
        found: Tensor = _aten.threshold_backward.default(gradient, self._outputs, 0)
        return found


@final
class _MaxPool(_Layer):
    def __init__(self, layer: nn.MaxPool2d) -> None:
        sizes = layer.kernel_size, layer.stride, layer.padding, layer.dilation
        pairs = ([each, each] if isinstance(each, int) else list(each) for each in sizes)
        self._settings = *pairs, layer.ceil_mode

    def forward(self, inputs: Tensor) -> Tensor:
        self._inputs = inputs
        pool = _aten.max_pool2d_with_indices.default
        outputs: Tensor
        outputs, self._indices = pool(inputs, *self._settings)
        return outputs

    def backward(self, gradient: Tensor) -> Tensor:
        spread = _aten.max_pool2d_with_indices_backward.default
        found: Tensor = spread(gradient, self._inputs, *self._settings, self._indices)
        return found


class _Weighted(_Layer):
    """A layer with a weight and a bias."""

    def __init__(self, layer: nn.Linear | nn.Conv2d) -> None:
        assert layer.bias is not None
        self._weight, self._bias = layer.weight.detach(), layer.bias.detach()
        assert layer.weight.grad is not None
        assert layer.bias.grad is not None
        self._weight_gradient, self._bias_gradient = layer.weight.grad, layer.bias.grad


@final
class _Linear(_Weighted):
    def forward(self, inputs: Tensor) -> Tensor:
        self._inputs = inputs
        return F.linear(inputs, self._weight, self._bias)

    def backward(self, gradient: Tensor) -> Tensor:
        # A product is rounded by where its result begins: as where autograd puts it.
        if self._weight_gradient.data_ptr() % ALIGNMENT == 0:
            torch.mm(gradient.t(), self._inputs, out=self._weight_gradient)
        else:
            self._weight_gradient.copy_(gradient.t() @ self._inputs)
        self._bias_gradient.copy_(gradient.sum(dim=0))
        return gradient @ self._weight if self.needs_input_gradient else gradient


@final
class _Convolution(_Weighted):
    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__(layer)
        self._layer = layer

    def forward(self, inputs: Tensor) -> Tensor:
        self._inputs = inputs
        return self._layer.forward(inputs)

    def backward(self, gradient: Tensor) -> Tensor:
        layer = self._layer
        found: Tensor
        found, weight, bias = _aten.convolution_backward.default(
            gradient,
            self._inputs,
            self._weight,
            self._bias.shape,
            layer.stride,
            layer.padding,
            layer.dilation,
            False,  # Not transposed, no output padding.
            (0, 0),
            layer.groups,
            (self.needs_input_gradient, True, True),
        )
        self._weight_gradient.copy_(weight)
        self._bias_gradient.copy_(bias)
        return found


_KINDS: dict[type[nn.Module], Callable[[Any], _Layer]] = {
    nn.Flatten: _Flatten,
    nn.ReLU: _ReLU,
    nn.MaxPool2d: _MaxPool,
    nn.Linear: _Linear,
    nn.Conv2d: _Convolution,
}
