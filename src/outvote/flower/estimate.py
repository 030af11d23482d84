"""What an attacking node knows: its own update, and those of the rounds before."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message
from numpy.typing import NDArray

MEMORY = "outvote-drill"
"""The record in the state of a node that holds what it has seen."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """The model that a node was sent, as one vector, and the update that it made of it.

    Whole numbers, such as counters of batches, are nobody's gradient and stay out.
    """

    record: ArrayRecord
    names: tuple[str, ...]
    model: NDArray[Any]
    update: NDArray[Any]

    @classmethod
    def of(cls, message: Message, reply: Message) -> "Exchange":
        """Find the model in the message and what became of it in the reply."""
        sent, returned = _only_arrays(message, "message"), _only_arrays(reply, "reply")
        before = {name: array.numpy() for name, array in sent.items()}
        after = {name: array.numpy() for name, array in returned.items()}
        names = tuple(name for name, array in before.items() if array.dtype.kind == "f")
        for name in names:
            if name not in after or after[name].shape != before[name].shape:
                raise ValueError(
                    f"the reply must hold the arrays that came, got no {name!r} of the shape "
                    f"{before[name].shape}; mend the ClientApp."
                )
        model, trained = _vector(before, names), _vector(after, names)
        return cls(record=returned, names=names, model=model, update=trained - model)

    def send(self, update: NDArray[Any]) -> None:
        """Put another update into the reply, in the dtypes that the app chose."""
        vector, first = self.model + update, 0
        for name in self.names:
            array = self.record[name].numpy()
            piece = vector[first : first + array.size].reshape(array.shape)
            with np.errstate(over="ignore"):
                self.record[name] = Array(piece.astype(array.dtype))
            first += array.size


def remember(context: Context, exchange: Exchange, num_rows: int) -> NDArray[Any]:
    """Return the latest updates that the node knows of, one per row, its own of now the last.

    What the server did to the model since the last round tells what others sent.
    """
    known = context.state.get(MEMORY)
    rows = [exchange.update[None]]
    if isinstance(known, ArrayRecord) and known["model"].shape == exchange.model.shape:
        step = exchange.model - known["model"].numpy()
        rows = [known["rows"].numpy(), step[None, :][: int(step.any())], *rows]
    latest = np.concatenate(rows)[-num_rows:]
    context.state[MEMORY] = ArrayRecord({"model": Array(exchange.model), "rows": Array(latest)})
    return latest


def _only_arrays(message: Message, what: str) -> ArrayRecord:
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise ValueError(
            f"a {what} of a drill must hold one record of arrays, the model, got {len(records)}."
        )
    return records[0]


def _vector(arrays: dict[str, NDArray[Any]], names: tuple[str, ...]) -> NDArray[Any]:
    if not names:
        raise ValueError("the model must have arrays of floats, got none; there is no update.")
    # float16 would round what is subtracted.
    dtype = np.result_type(np.float32, *(arrays[name].dtype for name in names))
    return np.concatenate([arrays[name].astype(dtype).reshape(-1) for name in names])
