"""Your own rule in ten lines, for `outvote show examples/my_rule.py:MyRule`."""

import torch

import outvote as ov


class MyRule(ov.AffineRule):
    """Average of the n - f clients that are closest to the nearer half of all clients.

    Needs: the distances between the clients. Tolerates: n >= 2f + 1.
    """

    def max_byzantine(self, num_clients: int) -> int:
        """Return the largest f with n >= 2f + 1."""
        return max(0, (num_clients - 1) // 2)

    def weigh(self, matrix: ov.ClientMatrix, info: ov.RoundInfo) -> ov.Aggregation:
        """Give the kept clients equal weights; axes before the clients are runs and groups."""
        half = matrix.num_clients // 2 + 1
        scores = matrix.squared_distances.sort(dim=-1).values[..., :half].sum(dim=-1)
        num_kept = matrix.num_clients - info.num_byzantine
        kept = scores.argsort(dim=-1, stable=True)[..., :num_kept]
        weights = torch.zeros_like(scores).scatter_(-1, kept, 1 / num_kept)
        return ov.Aggregation(weights=weights, scores=scores)


if __name__ == "__main__":
    ov.check_rule(MyRule())
    ov.check_rule(ov.GAS(MyRule(), num_groups=4))
    print("MyRule passes all checks, alone and inside GAS.")
