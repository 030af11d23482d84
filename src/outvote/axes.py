"""Names for tensor shapes.

Kernels work on batches: the first axis is always the run, then possibly groups of coordinates, and
the last two axes are the coordinates and the clients. `Columns` keeps the clients last, so that the
values that all clients sent for one coordinate are side by side in memory: sorting them is a scan,
and one coordinate of a random split is one short copy.
"""

from typing import Annotated

from torch import Tensor

Rows = Annotated[Tensor, "runs clients dim"]
Columns = Annotated[Tensor, "runs *groups dim clients"]
PerClient = Annotated[Tensor, "runs *groups clients"]
PerCoordinate = Annotated[Tensor, "runs *groups dim"]
Pairs = Annotated[Tensor, "runs *groups clients clients"]
Mixture = Annotated[Tensor, "runs *groups mixed clients"]
