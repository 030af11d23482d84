"""The same round in plain loops: one run, one client, one step after the other.

Slow, obvious and complete: `round.py` must give the same for all runs at once. It shares the random
streams with the engine, and calls rules and attacks as a user of the library would.
"""

import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from outvote.engine.federation import sample_clients
from outvote.engine.run_stack import Run
from outvote.rules.verdict import Verdict
from outvote.seeding import RandomStream
from outvote.server.selection import Suspicions
from outvote.server.step import Server
from outvote.training.batches import MIN_BATCH, draw_batches, has_batch_norm
from outvote.training.local_sgd import LocalSGD
from outvote.training.objective import Loss, Objective, as_classes
from outvote.training.samples import Samples
from outvote.training.sequential import MakeOptimizer


@dataclass(slots=True, eq=False, kw_only=True)
class ReferenceRun:
    """One run with its own network."""

    run: Run
    model: nn.Module
    train: Samples
    test: Samples
    training: LocalSGD
    num_classes: int | None
    loss: Loss | None = None
    optimizer: MakeOptimizer | None = None
    server: Server = field(default_factory=Server)
    aggregate: str = "parameters"
    attack_state: Any = None
    rule_state: Any = None
    last_sent: dict[int, Tensor] = field(default_factory=dict)
    """With client momentum: the gradient that each client sent last."""
    suspicions: Suspicions = field(default_factory=dict)
    """With selection by score: how suspicious the clients are."""
    velocity: Tensor | None = None
    moments: tuple[Tensor, Tensor] | None = None
    """With an adaptive server: the first and the second moment of the updates."""

    def run_round(self, number: int, *, is_evaluated: bool = True) -> dict[str, Any]:
        """Run one round, counted from 1."""
        run = self.run
        clients = self.sample(number)
        is_byzantine = [run.federation.is_byzantine[client] for client in clients]
        assumed = run.num_byzantine_assumed(sum(is_byzantine))
        # Byzantine clients whose own gradients nobody uses do not train.
        has_buffers = any(True for _ in self.model.buffers())
        is_used = run.attack.needs_own() or has_buffers or all(is_byzantine)
        is_idle = [is_bad and not is_used for is_bad in is_byzantine]
        rows, buffers = [], []
        for k, client in enumerate(clients):
            part = run.federation.parts[client][: 0 if is_idle[k] else None]
            row, after = self.train_on(part, run.stream(number, client), number, is_byzantine[k])
            rows.append(row if is_idle[k] else self.with_momentum(row, client))
            buffers.append(after)
        info: dict[str, Any] = {"num_byzantine": assumed, "when_too_many": "lower", "round": number}
        info["layer_sizes"] = [values.numel() for values in self.values()]
        if run.rule.traits.needs_reference:
            assert run.root is not None
            info["reference"], _ = self.train_on(run.root, run.stream(number, "server"), number)
        if run.rule.traits.has_state:
            info["state"] = self.rule_state
        if run.rule.traits.needs_model:
            info["model"] = torch.cat([values.flatten().double() for values in self.values()])
        sent = self.attack(torch.stack(rows), clients, is_byzantine, number, info)
        seed = run.stream(number, "rule").derived()[0]
        counts = run.sample_counts(clients)
        verdict = run.rule.inspect(sent, seed=seed, clients=clients, sample_counts=counts, **info)
        self.rule_state = verdict.state
        self.remember(clients, verdict)
        self.apply(verdict, buffers, clients)
        return {
            "clients": clients,
            "kept": verdict.kept,
            "num_byzantine_used": verdict.num_byzantine,
            "accuracy": self.accuracy() if is_evaluated else None,
        }

    def sample(self, number: int) -> list[int]:
        """Return the clients of a round."""
        run, num_clients = self.run, self.run.federation.num_clients
        weights = run.selection.weights(self.suspicions, range(num_clients))
        return sample_clients(num_clients, run.num_sampled, run.stream(), number, weights)

    def remember(self, clients: list[int], verdict: Verdict) -> None:
        """Change the suspicions of the clients of a round by their scores."""
        by_client = dict(zip(clients, verdict.scores.tolist(), strict=True))
        self.suspicions = self.run.selection.updated(self.suspicions, by_client)

    def train_on(
        self, part: Tensor, stream: RandomStream, number: int, is_byzantine: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """Train a copy of the network on some samples; return the gradient and the buffers."""
        model = copy.deepcopy(self.model).train()
        optimiser = self.new_optimizer(model, number)
        has_classes = self.num_classes is not None
        objective = Objective.of(self.train.targets, self.loss, has_classes=has_classes)
        least = MIN_BATCH if has_batch_norm(model) else 1
        batches = draw_batches(part, self.training, stream, least)
        for step, size in enumerate(batches.sizes):
            index = batches.index[step, :size]
            moves = None if batches.moves is None else batches.moves[step, :size]
            (first, *others), targets = self.train.inputs(index, moves), self.train.targets[index]
            if is_byzantine and self.run.attack.poisons_data:
                assert self.num_classes is not None
                first, targets = self.run.attack.poison(first, targets, self.num_classes)
            optimiser.zero_grad()
            loss = objective(model(first, *others), targets)
            if self.training.proximal:
                loss = loss + self.proximal_term(model)
            loss.backward()
            if self.training.max_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), self.training.max_norm)
            optimiser.step()
        change = [
            (before - after).detach().flatten()
            for before, after in zip(self.model.parameters(), model.parameters(), strict=True)
        ]
        buffers = [buffer.clone() for buffer in model.buffers()]
        if self.aggregate == "state":
            pairs = zip(self.model.buffers(), buffers, strict=True)
            change += [
                torch.where(before == after, 0, before - after).flatten().to(change[0])
                for before, after in pairs
            ]
        return torch.cat(change), buffers

    def new_optimizer(self, model: nn.Module, number: int) -> torch.optim.Optimizer:
        """Return the optimiser of a client in a round."""
        rate = self.training.learning_rate_at(number)
        if self.optimizer is not None:
            made = self.optimizer(model.parameters())
            for group in made.param_groups:
                group["lr"] *= rate / self.training.learning_rate_at(1)
            return made
        return torch.optim.SGD(
            model.parameters(),
            lr=rate,
            momentum=self.training.momentum,
            weight_decay=self.training.weight_decay,
        )

    def proximal_term(self, model: nn.Module) -> Tensor:
        """Return the term that FedProx adds to the loss, for a network that started as ours."""
        pairs = zip(model.parameters(), self.model.parameters(), strict=True)
        squared = sum((values - start.detach()).square().sum() for values, start in pairs)
        return torch.as_tensor(self.training.proximal / 2 * squared)

    def with_momentum(self, row: Tensor, client: int) -> Tensor:
        """Mix a gradient with the one that the client sent last; after NaN or inf start anew."""
        share = self.training.client_momentum
        if share:
            row = share * self.last_sent.pop(client, row) + (1 - share) * row
            if bool(row.isfinite().all()):
                self.last_sent[client] = row
        return row

    def attack(
        self,
        rows: Tensor,
        clients: list[int],
        is_byzantine: list[bool],
        number: int,
        info: dict[str, Any],
    ) -> Tensor:
        """Replace the rows of the Byzantine clients."""
        theirs = torch.tensor(is_byzantine)
        if not any(is_byzantine):
            return rows
        # The rule gets the honest rows first here.
        ids = [clients[k] for k in (*(~theirs).nonzero(), *theirs.nonzero())]
        found = self.run.attack.inspect(
            rows[~theirs],
            num_byzantine=sum(is_byzantine),
            own=rows[theirs],
            rule=partial(
                self.run.rule, clients=ids, sample_counts=self.run.sample_counts(ids), **info
            ),
            seed=self.run.stream(number, "attack").derived()[0],
            state=self.attack_state,
            round=number,
        )
        self.attack_state = found.state
        sent = rows.clone()
        sent[theirs] = found.rows
        return sent

    @torch.no_grad()
    def apply(self, verdict: Verdict, sent: list[list[Tensor]], clients: list[int]) -> None:
        """Take the server's step, and replace the buffers."""
        parameters, buffers = list(self.model.parameters()), list(self.model.named_buffers())
        dim = sum(parameter.numel() for parameter in parameters)
        step, rest = verdict.update[:dim], verdict.update[dim:]
        if self.server.momentum:
            last = torch.zeros_like(step) if self.velocity is None else self.velocity
            step = self.velocity = self.server.momentum * last + step
        if self.server.optimizer != "sgd":
            step = self.adapted(step)
        vector = nn.utils.parameters_to_vector(parameters) - self.server.learning_rate * step
        nn.utils.vector_to_parameters(vector, parameters)
        for k, (name, buffer) in enumerate(buffers):
            if self.aggregate == "state":
                size = buffer.numel()
                value, rest = buffer - rest[:size].view_as(buffer), rest[size:]
                if not buffer.is_floating_point():
                    value = value.round()
                if name.endswith(("num_batches_tracked", "running_var")):
                    value = value.clamp(min=0)
            else:
                value = self.merged(sent, k, verdict, clients)
            buffer.copy_(value)

    def adapted(self, update: Tensor) -> Tensor:
        """Return the step of FedAdam, FedYogi or FedAdagrad: Reddi et al., 2021, Algorithm 2."""
        server = self.server
        if self.moments is None:
            self.moments = torch.zeros_like(update), torch.full_like(update, server.epsilon**2)
        first, second = self.moments
        first = server.beta1 * first + (1 - server.beta1) * update
        if server.optimizer == "adam":
            second = server.beta2 * second + (1 - server.beta2) * update**2
        elif server.optimizer == "yogi":
            second = second - (1 - server.beta2) * update**2 * torch.sign(second - update**2)
        else:
            second = second + update**2
        self.moments = first, second
        return first / (second.sqrt() + server.epsilon)

    def merged(
        self, sent: list[list[Tensor]], k: int, verdict: Verdict, clients: list[int]
    ) -> Tensor:
        """Merge what the clients sent for buffer `k`; what no client changed stays."""
        name, before = list(self.model.named_buffers())[k]
        if all(torch.equal(each[k], before) for each in sent):
            return before
        if name.endswith("num_batches_tracked"):
            return torch.stack([each[k] for each in sent]).amax(dim=0)
        if verdict.kept is None or not self.run.rule.traits.selects_clients:
            finite = [each[k] for each in sent if all(bool(b.isfinite().all()) for b in each)]
            return torch.stack(finite).quantile(0.5, dim=0)
        pairs = zip(sent, clients, strict=True)
        kept = [each[k] for each, client in pairs if client in verdict.kept]
        return torch.stack(kept or [each[k] for each in sent]).mean(dim=0)

    def values(self) -> list[Tensor]:
        """Return what rules aggregate, in order: the parameters, or the whole state."""
        buffers = list(self.model.buffers()) if self.aggregate == "state" else []
        return [*(parameter.detach() for parameter in self.model.parameters()), *buffers]

    @torch.no_grad()
    def accuracy(self) -> float:
        """Return the accuracy on the test set; NaN where targets are not classes."""
        if self.num_classes is None:
            return float("nan")
        outputs = self.model.eval()(*self.test.inputs(torch.arange(len(self.test))))
        logits, labels = as_classes(outputs, self.test.targets)
        return float((logits.argmax(dim=1) == labels)[labels >= 0].double().mean())
