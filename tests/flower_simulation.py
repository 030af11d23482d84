"""A simulation with Flower's engine: `python flower_simulation.py FOLDER NUM_NODES SETTINGS`.

Run it in a network namespace of its own (`unshare -rn`), and only there: Ray, which it starts,
listens on every interface.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from flower_federation import Federation


def main(folder, num_nodes, settings):
    """Run the example's app with so many virtual nodes; its log is what is printed."""
    interfaces = [name for _, name in socket.if_nameindex()]
    assert interfaces == ["lo"], f"not in a network namespace of its own: {interfaces}"
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    # Ray's sockets must have short names.
    with tempfile.TemporaryDirectory(prefix="ray") as short:
        os.environ["RAY_TMPDIR"] = short
        with Federation(Path(folder), num_virtual=int(num_nodes)) as federation:
            federation.start_link()
            federation.start_run("run", **json.loads(settings))
            print(federation.wait_for_end("run"))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
