"""Networks that clients train: some written by hand for what they do, others generated."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.utils.prune
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrizations, prune

from outvote.models.networks import char_transformer
from outvote.models.parts import Branches, GlobalAverage, Residual

NUM_CLASSES, TIME, WORDS = 5, 6, 11
UNKNOWN = "not one of the known layers"
HOOKS = "has hooks"
ARRAY = "not one array of floating-point numbers"
CONTROL = "data-dependent control flow"
Refused = Mapping[str, str]


@dataclass(frozen=True)
class Network:
    """How to build a network, what it takes, and who refuses it for which reason."""

    make: Callable[[], nn.Module]
    kind: str
    refused: Refused = field(default_factory=dict)
    loss: Callable[[Any, Tensor], Tensor] | None = None
    around: Callable[[], AbstractContextManager[Any]] = nullcontext

    def build(self, seed: int) -> nn.Module:
        """Make it with weights of a seed, in float64."""
        with torch.random.fork_rng([]):
            torch.default_generator.manual_seed(seed)
            return self.make().double()


def drawn(*shape: int, high: int = 0) -> Tensor:
    """Draw numbers, or whole numbers below `high`."""
    generator = torch.Generator().manual_seed(sum(shape))
    if high:
        return torch.randint(high, shape, generator=generator)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def inputs_of(kind: str, num: int) -> tuple[Tensor, Tensor]:
    """Return samples and targets of a kind."""
    labels = drawn(num, high=NUM_CLASSES)
    inputs, targets = {
        "vectors": (drawn(num, 7), labels),
        "images": (drawn(num, 3, 6, 6), labels),
        "tokens": (drawn(num, TIME, high=WORDS), labels),
        "texts": (drawn(num, TIME, high=WORDS), drawn(num, TIME, high=WORDS)),
        "numbers": (drawn(num, 7), drawn(num, 2)),
    }[kind]
    if kind == "texts":
        targets[::3, -1] = -100  # Targets that do not count.
    return inputs, targets


def everywhere(reason: str, *but: str) -> Refused:
    """Return that all but some of the fast trainers refuse a network for one reason."""
    return {way: reason for way in ("cores", "stacked", "vmap") if way not in but}


OWN = everywhere(UNKNOWN, "vmap")
"""What is accepted by vmap alone."""


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, NUM_CLASSES))


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        Residual(nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4, momentum=0.3))),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(36, NUM_CLASSES),
    )


def fire() -> nn.Sequential:
    def part(size: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(4, 3, size, padding=size // 2), nn.BatchNorm2d(3), nn.ReLU())

    shortcut = nn.Conv2d(4, 6, 1, bias=False)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=2),
        nn.ReLU(),
        Residual(Branches(part(1), part(3)), shortcut),
        nn.Conv2d(6, NUM_CLASSES, 1),
        GlobalAverage(),
    )


def cumulative() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=None), nn.ReLU(), nn.Flatten(),
        nn.Linear(64, NUM_CLASSES),
    )  # fmt: skip


def grouped() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, groups=3, dilation=2), nn.SiLU(), nn.Flatten(),
        nn.Linear(24, 6), nn.BatchNorm1d(6), nn.PReLU(), nn.Linear(6, NUM_CLASSES),
    )  # fmt: skip


class Own(nn.Module):
    """The class of a user; what its parts do differs in the classes below."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(7, 9), nn.Linear(9, NUM_CLASSES)

    def forward(self, values: Tensor) -> Tensor:
        return self.out(torch.tanh(self.first(values)))


class GroupNormCNN(nn.Module):
    """Convolutions of several kinds, with group norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8, padding=1, bias=False)
        self.second = nn.Conv2d(8, 6, 3, stride=2)
        self.out = nn.Linear(6, NUM_CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        hidden = F.gelu(self.norm(self.first(images)))
        hidden = F.relu(self.second(self.depthwise(hidden) + hidden))
        return self.out(F.avg_pool2d(hidden, 2).flatten(1))


class FunctionalGroupNorm(nn.Module):
    """An operation that does not take the memory layout of products under vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Conv2d(3, 4, 3), nn.Linear(4, NUM_CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.out(F.group_norm(self.first(images), 2).mean(dim=(2, 3)))


class Transformer(nn.Module):
    """One block with attention of its own; the output has the weights of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, 8)
        self.positions = nn.Parameter(torch.randn(TIME, 8) * 0.1)
        self.norm, self.mix = nn.LayerNorm(8), nn.Linear(8, 24)
        self.out = nn.Linear(8, WORDS, bias=False)
        self.out.weight = self.tokens.weight
        self.register_buffer("is_later", torch.ones(TIME, TIME, dtype=torch.bool).triu(1))

    def forward(self, tokens: Tensor) -> Tensor:
        values = self.tokens(tokens) + self.positions
        query, key, value = self.mix(self.norm(values)).chunk(3, dim=-1)
        scores = (query @ key.mT / 8**0.5).masked_fill(self.is_later, float("-inf"))
        return self.out(values + scores.softmax(dim=-1) @ value)


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 9), nn.Linear(9, NUM_CLASSES))
    module[2].requires_grad_(False)
    return module


def dropout() -> nn.Module:
    shared = nn.Dropout(0.3)
    return nn.Sequential(
        nn.Linear(7, 9), shared, nn.Linear(9, 9), shared, nn.Dropout(0.4, inplace=True),
        nn.Linear(9, NUM_CLASSES),
    )  # fmt: skip


def dropout_2d() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.Dropout2d(0.4), nn.SELU(), nn.Flatten(), nn.Dropout(0.0),
        nn.Linear(96, NUM_CLASSES),
    )  # fmt: skip


class FunctionalDropout(Own):
    """Dropout that is no layer, in evaluation too."""

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(F.dropout(values, 0.5))


class PythonNoise(Own):
    """Draws from the generator of Python, which vmap does not see."""

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values) * (1 + random.random())


class TorchTransformer(nn.Module):
    """Torch's own layer."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=rate, batch_first=True)
        self.out = nn.Linear(8, WORDS)
        self.register_buffer("is_later", torch.ones(TIME, TIME, dtype=torch.bool).triu(1))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.layer(self.tokens(tokens), src_mask=self.is_later))


class Recurrent(nn.Module):
    """A recurrent network that reads text."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.tokens, self.mix = nn.Embedding(WORDS, 8), kind(8, 6, batch_first=True)
        self.out = nn.Linear(6, NUM_CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.mix(self.tokens(tokens))[0][:, -1])


class Experts(nn.Module):
    """Each sample has one expert: in some batches an expert gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(7, 4)
        self.experts = nn.ModuleList(nn.Linear(7, NUM_CLASSES) for _ in range(4))

    def forward(self, values: Tensor) -> Tensor:
        shares = self.gate(values).softmax(dim=1)
        which, found = shares.argmax(dim=1), values.new_zeros(len(values), NUM_CLASSES)
        for k, expert in enumerate(self.experts):
            if (which == k).any():
                found[which == k] = expert(values[which == k]) * shares[which == k, k : k + 1]
        return found


class TwoWays(Own):
    """One part is used only where the first number of a batch is negative."""

    def __init__(self) -> None:
        super().__init__()
        self.some = nn.Linear(7, NUM_CLASSES)

    def forward(self, values: Tensor) -> Tensor:
        found = super().forward(values)
        return found + self.some(values) if float(values[0, 0]) < 0 else found


class NeverUsed(Own):
    """One part is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.never = nn.Linear(7, 3)


def changed(change: Callable[[nn.Sequential], object]) -> Callable[[], nn.Module]:
    """Return what makes an mlp that a user has changed."""

    def make() -> nn.Module:
        module = mlp()
        change(module)
        return module

    return make


def replace_forward(module: nn.Sequential) -> None:
    module.forward = lambda values: 2 * module[2](torch.tanh(module[0](values)))


def half(gradient: Tensor) -> Tensor:
    return 0.5 * gradient


@torch.no_grad()
def shrink(parameter: nn.Parameter) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(0.5)


@contextmanager
def global_hook() -> Iterator[None]:
    handle = register_module_forward_hook(
        lambda module, _, output: 2 * output if type(module) is nn.ReLU else None
    )
    try:
        yield
    finally:
        handle.remove()


class Padded(nn.Module):
    """An embedding with settings of its own."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.tokens, self.mix = nn.Embedding(WORDS, 8, **settings), nn.Linear(8, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        # The output has rows of the embedding, too.
        return F.linear(self.mix(self.tokens(tokens)).tanh(), self.tokens.weight)


class FunctionalPadding(Padded):
    """An embedding that is no layer."""

    def forward(self, tokens: Tensor) -> Tensor:
        return self.mix(F.embedding(tokens, self.tokens.weight, padding_idx=2)).mean(dim=1)[:, :5]


class ParametersInAList(Own):
    """Reaches a parameter by a list, too, which functional_call does not replace."""

    def __init__(self) -> None:
        super().__init__()
        self.others = [self.first.weight]

    def forward(self, values: Tensor) -> Tensor:
        return self.out(torch.tanh(self.first(values) + values @ self.others[0].mT))


class Counting(Own):
    """Puts another tensor in the place of a buffer, and depends on it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, values: Tensor) -> Tensor:
        if self.training:
            self.count = self.count + 1
        return super().forward(values) * (1 + 0.1 * self.count)


class Wrapped(nn.Parameter):
    """A parameter that a user made a class of."""


def own_parameter() -> nn.Module:
    module = mlp()
    module[0].weight = Wrapped(module[0].weight.detach())
    return module


def first_sum(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs[0], targets) + outputs[1].square().mean()


class TwoOutputs(Own):
    """Returns a pair, for a loss of the user."""

    def forward(self, values: Tensor) -> Any:
        return super().forward(values), self.first(values)


def regression() -> nn.Sequential:
    return nn.Sequential(nn.Linear(7, 9), nn.Softplus(), nn.Linear(9, 2))


LOSS = "the loss is not"
TEXTS = {"cores": UNKNOWN, "stacked": LOSS}
HANDWRITTEN: dict[str, Network] = {
    "mlp": Network(mlp, "vectors"),
    "cnn": Network(cnn, "images"),
    "fire": Network(fire, "images"),
    "cumulative-batch-norm": Network(cumulative, "images", {"vmap": "vmap cannot run it"}),
    "grouped": Network(grouped, "images", {"stacked": UNKNOWN}),
    "linear-over-images": Network(
        lambda: nn.Sequential(
            nn.Linear(6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(54, NUM_CLASSES)
        ),
        "images",
        {"stacked": "Linear is given images"},
    ),
    "flatten-by-axis": Network(
        lambda: nn.Sequential(nn.Flatten(2), nn.Flatten(), nn.Linear(108, NUM_CLASSES)),
        "images",
        {"stacked": "Flatten keeps some axes"},
    ),
    "own-class": Network(Own, "vectors", OWN),
    "group-norm": Network(GroupNormCNN, "images", OWN),
    "functional-group-norm": Network(FunctionalGroupNorm, "images", OWN),
    "char-transformer": Network(
        lambda: char_transformer(WORDS, (TIME,)), "texts", {"stacked": LOSS}
    ),
    "tied": Network(Transformer, "texts", TEXTS),
    "frozen": Network(frozen, "vectors", everywhere("2.weight is frozen|" + UNKNOWN, "vmap")),
    "tied-layers": Network(
        lambda: nn.Sequential(*[nn.Linear(7, 7)] * 2, nn.Linear(7, NUM_CLASSES)),
        "vectors",
        everywhere("there are tied parameters", "vmap"),
    ),
    "dropout": Network(dropout, "vectors", OWN),
    "dropout-2d": Network(dropout_2d, "images", OWN),
    "functional-dropout": Network(FunctionalDropout, "vectors", {**OWN, "vmap": "random"}),
    "python-noise": Network(PythonNoise, "vectors", {**OWN, "vmap": "generator of Python"}),
    "attention": Network(
        partial(TorchTransformer, 0.0), "texts", TEXTS
    ),
    "attention-with-dropout": Network(
        partial(TorchTransformer, 0.2), "texts", everywhere(f"{UNKNOWN}|{LOSS}|random operation")
    ),
    "lstm": Network(
        partial(Recurrent, nn.LSTM), "tokens", everywhere(f"{UNKNOWN}|{ARRAY}|cannot run it")
    ),
    "gru": Network(
        partial(Recurrent, nn.GRU), "tokens", everywhere(f"{UNKNOWN}|{ARRAY}|cannot run it")
    ),
    "experts": Network(Experts, "vectors", {**OWN, "vmap": CONTROL}),
    "two-ways": Network(TwoWays, "vectors", {**OWN, "vmap": "vmap cannot run it"}),
    "never-used": Network(NeverUsed, "vectors", {**OWN, "vmap": "does not depend on never.weight"}),
    "forward-hook": Network(
        changed(lambda m: m[0].register_forward_hook(lambda _, __, found: 2 * found)),
        "vectors",
        everywhere(HOOKS),
    ),
    "forward-pre-hook": Network(
        changed(lambda m: m[2].register_forward_pre_hook(lambda _, given: (given[0] + 1,))),
        "vectors",
        everywhere(HOOKS),
    ),
    "backward-hook": Network(
        changed(lambda m: m[2].register_full_backward_hook(lambda _, into, __: (0.5 * into[0],))),
        "vectors",
        everywhere(HOOKS),
    ),
    "parameter-hook": Network(
        changed(lambda m: m[0].weight.register_hook(half)),
        "vectors",
        everywhere("the parameter 0.weight has hooks"),
    ),
    "accumulate-hook": Network(
        changed(lambda m: m[2].bias.register_post_accumulate_grad_hook(shrink)),
        "vectors",
        everywhere("the parameter 2.bias has hooks"),
    ),
    "global-hook": Network(
        mlp, "vectors", everywhere("there are hooks for all modules"), around=global_hook
    ),
    "own-forward": Network(changed(replace_forward), "vectors", everywhere("a method forward")),
    "own-parameter": Network(own_parameter, "vectors", everywhere("0.weight is a Wrapped")),
    "stray-parameter": Network(
        changed(lambda m: setattr(m[0], "other", nn.Parameter(torch.ones(3)))),
        "vectors",
        everywhere("parameters or parts of its own|does not depend on 0.other"),
    ),
    "spectral-norm": Network(
        changed(lambda m: parametrizations.spectral_norm(m[0])),
        "vectors",
        everywhere(f"{UNKNOWN}|cannot run it"),
    ),
    "weight-norm": Network(
        changed(lambda m: parametrizations.weight_norm(m[0])), "vectors", OWN
    ),
    "old-spectral-norm": Network(
        changed(lambda m: nn.utils.spectral_norm(m[0])), "vectors", everywhere(HOOKS)
    ),
    "pruned": Network(
        changed(lambda m: prune.l1_unstructured(m[0], "weight", 0.4)), "vectors", everywhere(HOOKS)
    ),
    "padded-first": Network(partial(Padded, padding_idx=0), "texts", TEXTS),
    "padded-last": Network(partial(Padded, padding_idx=-1), "texts", TEXTS),
    "embedding-max-norm": Network(
        partial(Padded, max_norm=1.0), "texts", everywhere(f"{UNKNOWN}|{LOSS}|max_norm")
    ),
    "embedding-by-frequency": Network(
        partial(Padded, scale_grad_by_freq=True),
        "texts",
        everywhere(f"{UNKNOWN}|{LOSS}|scale_grad_by_freq"),
    ),
    "functional-padding": Network(
        FunctionalPadding, "tokens", everywhere(f"{UNKNOWN}|{ARRAY}|padding_idx")
    ),
    "parameters-in-a-list": Network(
        ParametersInAList, "vectors", {**OWN, "vmap": "that are no attributes of their layers"}
    ),
    "buffer-replaced": Network(Counting, "vectors", OWN),
    "two-outputs": Network(
        TwoOutputs, "vectors", everywhere(LOSS, "vmap"), loss=first_sum
    ),
    "regression": Network(regression, "numbers", {"stacked": LOSS}),
    "scripted": Network(
        lambda: torch.jit.script(mlp()), "vectors", everywhere(".")
    ),
}  # fmt: skip


def generated(draw: random.Random) -> Network:
    """Draw a network of known layers; who accepts it follows from its layers."""
    kind = draw.choice(["vectors", "images", "images"])
    settings = draw.getrandbits(32)

    def make() -> nn.Module:
        return nn.Sequential(*_layers(random.Random(settings), kind))

    stacked = {type(part) for part in _parts(kind, settings)}
    refused = {} if stacked <= STACKED else {"stacked": UNKNOWN}
    return Network(make, kind, refused)


STACKED = {
    *(nn.Linear, nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d, nn.ReLU, nn.Flatten, nn.Identity),
    *(nn.Sequential, nn.ModuleList, Residual, Branches, GlobalAverage),
}


def _parts(kind: str, settings: int) -> Iterator[nn.Module]:
    for layer in _layers(random.Random(settings), kind):
        yield from layer.modules()


def _layers(draw: random.Random, kind: str) -> Iterator[nn.Module]:
    # Half of the networks have only what the stacked trainer knows.
    others = draw.random() < 0.5
    activations = [nn.ReLU, nn.Identity, *([nn.GELU, nn.Tanh, nn.ELU] if others else [])]
    width, side = 3, 6
    if kind == "images":
        for _ in range(draw.choice([1, 2, 3])):
            yield from _convolution(draw, width, others, draw.choice(activations))
            width += 2
            if side == 6 and draw.random() < 0.5:
                side = 3
                yield nn.MaxPool2d(2)
        if draw.random() < 0.5:
            yield _wide(draw, width)
        if draw.random() < 0.3:
            yield GlobalAverage()
        else:
            yield nn.Flatten()
            width *= side * side
    else:
        width = 7
    for _ in range(draw.choice([0, 1, 2])):
        after = draw.choice([4, 6])
        yield nn.Linear(width, after, bias=draw.random() < 0.7)
        if others and draw.random() < 0.5:
            yield draw.choice([nn.LayerNorm, nn.BatchNorm1d])(after)
        yield draw.choice(activations)()
        width = after
    yield nn.Linear(width, NUM_CLASSES)


def _convolution(
    draw: random.Random, width: int, others: bool, activation: type[nn.Module]
) -> Iterator[nn.Module]:
    size = draw.choice([1, 3, 5])
    mode = "reflect" if others and size < 5 and draw.random() < 0.2 else "zeros"
    yield nn.Conv2d(
        width, width + 2, size, padding=size // 2, bias=draw.random() < 0.5, padding_mode=mode
    )
    if draw.random() < 0.6:
        yield nn.BatchNorm2d(
            width + 2, eps=draw.choice([1e-5, 0.1]), momentum=draw.choice([0.1, 0.5])
        )
    elif others:
        yield nn.GroupNorm(1, width + 2)
    yield activation()


def _wide(draw: random.Random, width: int) -> nn.Module:
    parts = [
        nn.Sequential(nn.Conv2d(width, own, 1), nn.BatchNorm2d(own), nn.ReLU())
        for own in (1, width - 1)
    ]
    body = draw.choice([Branches(*parts), nn.Conv2d(width, width, 3, padding=1)])
    return Residual(body, draw.choice([None, nn.Conv2d(width, width, 1)]))
