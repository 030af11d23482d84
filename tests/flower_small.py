"""A small model, eleven hand-made nodes, and strategies for them."""

import numpy as np
from flwr.app import Message, RecordDict

from bad_replies import HandMadeGrid, arrays_of, content_of
from outvote.flower import RobustStrategy

MODEL = {"w": np.zeros((3, 4), np.float32), "b": np.zeros(2, np.float32)}
NODES = range(100, 111)


def strategy_of(rule="multi-krum", num_byzantine=2, audit_dir=None, **settings):
    return RobustStrategy(rule, num_byzantine=num_byzantine, audit_dir=audit_dir, **settings)


def grid_of(send, nodes=NODES):
    """A grid whose nodes send what ``send(node, model)`` returns."""

    def respond(message):
        model = arrays_of(message.content["arrays"])
        sent = send(message.metadata.dst_node_id, model)
        content = sent if isinstance(sent, RecordDict) else content_of(sent)
        return Message(content, reply_to=message)

    return HandMadeGrid(nodes, respond)
