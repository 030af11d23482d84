"""What a node does: finetune the adapter on its own sequences."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from finetune.task import adapter, finetune, load_adapter, make_model

app = ClientApp()


@app.train()
def train_once(message: Message, context: Context) -> Message:
    """Train the received adapter, and send it back; the transformer itself stays here."""
    model = make_model()
    load_adapter(model, message.content["arrays"].to_torch_state_dict())
    node = context.node_config
    loss = finetune(model, node["partition-id"], node["num-partitions"], context.run_config)
    metrics = MetricRecord({"train-loss": loss, "num-examples": 1})
    content = RecordDict({"arrays": ArrayRecord(adapter(model)), "metrics": metrics})
    return Message(content=content, reply_to=message)
