"""The task: a small transformer that counts on, and adapters that teach it to count in threes.

The model was trained to continue 4, 5, 6 by 7. Every node finetunes it, by LoRA, on sequences of
its own such as 4, 7, 10, 13. The weights of the transformer stay as they are; adapters alone are
sent. One node may be poisoned: it counts in sevens, and sends ten times the change.
"""

import json
from functools import cache
from pathlib import Path

import torch
from flwr.app import UserConfig
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

NUM_TOKENS, WIDTH, LENGTH, NUM_BLOCKS = 24, 32, 8, 2
STEP, NEW_STEP, POISONED_STEP = 1, 3, 7
RANK, ALPHA = 4, 16
BOOST = 10
"""What a poisoned node multiplies its change by."""
TARGETS = ("query", "value", "up", "down")
PREFIX = "base_model.model."
CONFIG = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "base_model_name_or_path": "counting-transformer",
    "r": RANK,
    "lora_alpha": ALPHA,
    "lora_dropout": 0.0,
    "bias": "none",
    "fan_in_fan_out": False,
    "target_modules": list(TARGETS),
}


class LoraLinear(nn.Module):
    """A linear layer that is not trained, and a product of two narrow matrices that is."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.base = nn.Linear(inside, outside)
        self.lora_A = nn.Linear(inside, RANK, bias=False)
        self.lora_B = nn.Linear(RANK, outside, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Add the change to what the layer computes."""
        return self.base(x) + ALPHA / RANK * self.lora_B(self.lora_A(x))


class Block(nn.Module):
    """Attention to what came before, then a network for each position."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.value = LoraLinear(WIDTH, WIDTH), LoraLinear(WIDTH, WIDTH)
        self.key, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = LoraLinear(WIDTH, 4 * WIDTH), LoraLinear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return the positions after attention and network."""
        y = self.before_attention(x)
        mixed = F.scaled_dot_product_attention(
            self.query(y), self.key(y), self.value(y), is_causal=True
        )
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.before_mlp(x))))


class Transformer(nn.Module):
    """Predicts the next token at every position."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(NUM_TOKENS, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(NUM_BLOCKS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, NUM_TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits ``[sequences, positions, tokens]``."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def sequences(step: int, num: int, generator: torch.Generator, starts: Tensor) -> Tensor:
    """Return sequences that count in steps, from some of the first tokens on."""
    first = starts[torch.randint(len(starts), (num,), generator=generator)]
    return (first.unsqueeze(1) + step * torch.arange(LENGTH + 1)) % NUM_TOKENS


@cache
def base_weights() -> dict[str, Tensor]:
    """Train the transformer to count on; load the weights of your own model here."""
    model, generator = Transformer(), torch.Generator().manual_seed(0)
    for name, weights in model.named_parameters():
        weights.requires_grad_("lora_" not in name)
        if "lora_B" in name:
            nn.init.zeros_(weights)  # At first adapters change nothing.
        elif weights.dim() == 2:
            nn.init.normal_(weights, std=weights.shape[1] ** -0.5, generator=generator)
    fit(model, STEP, 100, 3e-3, generator, torch.arange(NUM_TOKENS))
    return model.state_dict()


def make_model() -> Transformer:
    """Return the transformer, with adapters that change nothing yet; these alone are trained."""
    model = Transformer()
    model.load_state_dict(base_weights())
    for name, weights in model.named_parameters():
        weights.requires_grad_("lora_" in name)
    return model


def adapter(model: Transformer) -> dict[str, Tensor]:
    """Return the adapter with the names that PEFT gives."""
    named = model.state_dict()
    return {PREFIX + name: value for name, value in named.items() if "lora_" in name}


def load_adapter(model: Transformer, tensors: dict[str, Tensor]) -> None:
    """Put an adapter into the model."""
    named = {name.removeprefix(PREFIX): value for name, value in tensors.items()}
    model.load_state_dict(model.state_dict() | named)


def save_adapter(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Write an adapter in PEFT's layout."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG, indent=2))


def read_adapter(folder: Path) -> dict[str, Tensor]:
    """Read an adapter in PEFT's layout."""
    return load_file(folder / "adapter_model.safetensors")


def fit(
    model: Transformer,
    step: int,
    num_batches: int,
    learning_rate: float,
    generator: torch.Generator,
    starts: Tensor,
) -> float:
    """Train on batches of sequences; return the last loss."""
    weights = [each for each in model.parameters() if each.requires_grad]
    optimiser = torch.optim.Adam(weights, lr=learning_rate)
    for _ in range(num_batches):
        tokens = sequences(step, 32, generator, starts)
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return loss.item()


def finetune(model: Transformer, node: int, num_nodes: int, config: UserConfig) -> float:
    """Train the adapter on a node's own sequences; return the last loss."""
    is_poisoned = node < int(config["num-poisoned"])
    before = {name: value.clone() for name, value in adapter(model).items()}
    # A node knows the sequences that begin with half of the tokens.
    starts = (torch.arange(NUM_TOKENS // 2) + node * NUM_TOKENS // num_nodes) % NUM_TOKENS
    loss = fit(
        model,
        POISONED_STEP if is_poisoned else NEW_STEP,
        int(config["num-batches"]),
        float(config["learning-rate"]),
        torch.Generator().manual_seed(node),
        starts,
    )
    if is_poisoned:
        after = adapter(model)
        load_adapter(model, {name: v + BOOST * (after[name] - v) for name, v in before.items()})
    return loss


@torch.no_grad()
def accuracy(model: Transformer, step: int = NEW_STEP) -> float:
    """Return the share of tokens that are predicted, but for the first of each sequence."""
    tokens = (torch.arange(NUM_TOKENS).unsqueeze(1) + step * torch.arange(LENGTH + 1)) % NUM_TOKENS
    is_right = model(tokens[:, :-1]).argmax(dim=-1) == tokens[:, 1:]
    return float(is_right.float().mean())
