"""The same round in plain loops, one run, one client and one step after the other.

Slow and obvious: what `round.py` does for all runs at once must come out the same.
"""

import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outvote.clients.batches import draw_batches
from outvote.clients.federation import sample_clients
from outvote.clients.samples import Samples
from outvote.clients.training import Training
from outvote.engine.run_stack import Run


@dataclass(slots=True, eq=False)
class Plain:
    """One run, with a network of its own."""

    run: Run
    model: nn.Module
    train: Samples
    test: Samples
    training: Training
    num_classes: int
    attack_state: Any = None
    rule_state: Any = None
    sent: dict[int, Tensor] = field(default_factory=dict)

    def play(self, number: int, *, is_evaluated: bool = True) -> dict[str, Any]:
        """Play one round, counted from 1, and tell what happened."""
        run = self.run
        clients = sample_clients(run.federation.num_clients, run.num_sampled, run.stream(), number)
        lies = [run.federation.is_byzantine[client] for client in clients]
        local_updates = self.learn_all(clients, lies, number)
        sent = self.corrupt(local_updates, clients, lies, number)
        verdict = run.rule.inspect(
            sent,
            num_byzantine=run.num_byzantine_assumed(sum(lies)),
            when_too_many="lower",
            seed=run.stream(number, "rule").derived()[0],
            clients=clients,
            state=self.rule_state,
        )
        self.rule_state = verdict.state
        vector = nn.utils.parameters_to_vector(self.model.parameters()).detach()
        nn.utils.vector_to_parameters(vector - verdict.update, self.model.parameters())
        accuracy = self.accuracy() if is_evaluated else None
        return {"clients": clients, "kept": verdict.kept, "accuracy": accuracy}

    def learn_all(self, clients: list[int], lies: list[bool], number: int) -> list[Tensor]:
        """Train the clients; liars only if it matters what they would have sent."""
        are_spared = not self.run.attack.needs_own() and not all(lies)
        honest = [client for client, lie in zip(clients, lies, strict=True) if not lie]
        local_updates = {client: self.learn(client, number) for client in honest}
        for client in clients:
            if client not in local_updates:
                zero = torch.zeros_like(next(iter(local_updates.values()))) if are_spared else None
                local_updates[client] = self.learn(client, number) if zero is None else zero
        if self.training.client_momentum:
            share = self.training.client_momentum
            for client in honest if are_spared else clients:
                before = self.sent.get(client, local_updates[client])
                local_updates[client] = share * before + (1 - share) * local_updates[client]
                self.sent[client] = local_updates[client]
        return [local_updates[client] for client in clients]

    def learn(self, client: int, number: int) -> Tensor:
        """Train a copy of the network on the samples of a client."""
        model = copy.deepcopy(self.model).train()
        before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        optimiser = torch.optim.SGD(
            model.parameters(),
            lr=self.training.learning_rate_at(number),
            momentum=self.training.momentum,
            weight_decay=self.training.weight_decay,
        )
        batches = draw_batches(
            self.run.federation.parts[client], self.training, self.run.stream(number, client)
        )
        for step, size in enumerate(batches.sizes):
            index = batches.index[step, :size]
            moves = None if batches.moves is None else batches.moves[step, :size]
            samples, labels = (
                self.train.batch(index, moves).movedim(-1, 1),
                self.train.labels[index],
            )
            if self.run.federation.is_byzantine[client]:
                samples, labels = self.run.attack.poison(samples, labels, self.num_classes)
            optimiser.zero_grad()
            F.cross_entropy(model(samples), labels).backward()
            if self.training.max_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), self.training.max_norm)
            optimiser.step()
        return before - nn.utils.parameters_to_vector(model.parameters()).detach()

    def corrupt(
        self, local_updates: list[Tensor], clients: list[int], lies: list[bool], number: int
    ) -> Tensor:
        """Replace the rows of the liars by what their attack sends."""
        rows = torch.stack(local_updates)
        liar = torch.tensor(lies)
        if not any(lies):
            return rows
        found = self.run.attack.inspect(
            rows[~liar],
            num_byzantine=sum(lies),
            own=rows[liar],
            rule=partial(self.run.rule, num_byzantine=self.run.num_byzantine_assumed(sum(lies))),
            seed=self.run.stream(number, "attack").derived()[0],
            state=self.attack_state,
        )
        self.attack_state = found.state
        rows = rows.clone()
        rows[liar] = found.rows
        return rows

    @torch.no_grad()
    def accuracy(self) -> float:
        """Return the share of the test samples that the network recognises."""
        logits = self.model.eval()(self.test.batch(torch.arange(len(self.test))).movedim(-1, 1))
        return float((logits.argmax(dim=-1) == self.test.labels).double().mean())
