"""What a node does: train on its own images, or attack in a drill."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fashion.task import NUM_CLASSES, make_network, test, train, training_images
from outvote.flower import AttackMod, labels_to_train_on

# AttackMod does nothing unless the configuration of a node or of the run names an attack.
app = ClientApp(mods=[AttackMod()])


@app.train()
def train_once(message: Message, context: Context) -> Message:
    """Train the received model on the node's own images, and send it back."""
    model, images, labels = _ready(message, context)
    wanted = labels_to_train_on(message, labels, NUM_CLASSES)
    loss = train(model, images, wanted, context.run_config)
    metrics = MetricRecord({"train-loss": loss, "num-examples": len(labels)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the received model on the node's own images."""
    model, images, labels = _ready(message, context)
    loss, accuracy = test(model, images, labels)
    metrics = {"loss": loss, "accuracy": accuracy, "num-examples": len(labels)}
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


def _ready(message: Message, context: Context):  # noqa: ANN202
    """Return the received model, and the node's images and labels."""
    model = make_network(seed=0)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    node = context.node_config
    owned = training_images(node["partition-id"], node["num-partitions"], context.run_config)
    return model, *owned
