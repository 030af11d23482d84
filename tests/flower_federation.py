"""A federation on this machine: SuperLink and SuperNodes, real processes, stopped by their ids."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from flower_certificates import write_certificate, write_node_key
from flower_processes import HOST, PATIENCE, descendants, free_port, program, wait_until

EXAMPLE = Path(__file__).parents[1] / "examples" / "flower"
LINK = "here"
SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
    "NO_COLOR": "1",
}


class Federation:
    """Processes of Flower in a folder, which share one SuperLink; leave it to stop them all.

    With `is_secure`, there is TLS, and only nodes whose key was registered are let in. With
    `num_virtual`, there are no SuperNodes, but so many simulated ones.
    """

    def __init__(self, folder, *, is_secure=False, num_virtual=None):
        self.folder, self.is_secure, self.num_virtual = folder, is_secure, num_virtual
        self.port = free_port()
        self.started = {}
        self.app = folder / "app"
        shutil.copytree(EXAMPLE, self.app, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("home", "home-of-link", "logs"):
            (folder / name).mkdir()
        if is_secure:
            write_certificate(folder)
        self._write_address()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for name in reversed(list(self.started)):
            self.kill(name)

    def start_link(self):
        """Start the SuperLink, or start it again with what its database holds."""
        safety = ["--insecure"]
        if self.is_secure:
            files = {"ca-certfile": "ca.crt", "certfile": "server.pem", "keyfile": "server.key"}
            named = [(f"--ssl-{k}", str(self.folder / file)) for k, file in files.items()]
            safety = [word for pair in named for word in pair] + ["--enable-supernode-auth"]
        self._start(
            "superlink",
            ["flower-superlink", *safety, "--host", HOST, "--port", str(self.port)],
            ["--database", str(self.folder / "link.db")],
            ["--disable-runtime-dependency-installation"],
            ["--simulation"] if self.num_virtual else [],
        )
        wait_until(self._is_link_up, "the SuperLink listens")

    def start_node(self, number, num_nodes, **config):
        """Start a SuperNode; give it a key where keys are asked for."""
        settings = {"partition-id": number, "num-partitions": num_nodes, **config}
        words = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
        safety = ["--insecure"]
        if self.is_secure:
            safety = ["--root-certificates", str(self.folder / "ca.crt")]
            safety += ["--auth-supernode-private-key", str(self.key(number))]
        self._start(
            f"node{number}",
            ["flower-supernode", *safety, "--superlink", f"{HOST}:{self.port}"],
            ["--host", HOST, "--port", str(free_port()), "--node-config", words],
        )

    def key(self, number):
        """Return the private key of a node, made when it is first asked for."""
        path = self.folder / f"key{number}"
        if not path.exists():
            write_node_key(path)
        return path

    def register(self, number):
        """Let a node in; return its id."""
        public = f"{self.key(number)}.pub"
        answer = self.ask("supernode", "register", public, LINK, "--format", "json")
        return str(answer["node-id"])

    def online(self):
        """Return the ids of the nodes that are there."""
        nodes = self.ask("supernode", "list", LINK, "--format", "json")["nodes"]
        return {str(node["node-id"]) for node in nodes if node["status"] == "online"}

    def wait_for_nodes(self, count):
        """Wait until so many nodes are there.

        Every look is a program that takes a core for a second, and the nodes need the cores.
        """
        wait_until(lambda: len(self.online()) == count, f"{count} nodes are online", pause=2.0)

    def start_run(self, name, **config):
        """Start a run of the app; its log is that of `name`."""
        words = [f"{key}={json.dumps(value)}" for key, value in config.items()]
        self._start(name, ["flwr", "run", str(self.app), LINK, "--stream"], ["-c", " ".join(words)])

    def wait_for_end(self, name):
        """Wait until a run is over; return its log."""
        process = self.started[name]
        wait_until(lambda: process.poll() is not None, f"{name} is over", 2 * PATIENCE)
        return self.log(name)

    def log(self, name):
        """Return what a process has written."""
        return (self.folder / "logs" / name).read_text(errors="replace")

    def ask(self, *words):
        """Ask the SuperLink, and return the answer."""
        done = subprocess.run(
            [program("flwr"), *words],
            capture_output=True,
            text=True,
            env=self._environment("home"),
            timeout=PATIENCE,
            check=True,
        )
        return json.loads(done.stdout)

    def kill(self, name):
        """Kill a process and those it started with -9, each by its id."""
        process = self.started.pop(name)
        family = descendants(process.pid)
        for pid in [process.pid, *family] if process.poll() is None else family:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait()

    def kill_alone(self, name):
        """Kill a process with -9, and leave those it started to themselves; return their ids."""
        process = self.started.pop(name)
        family = descendants(process.pid)
        process.kill()
        process.wait()
        return family

    def addresses(self):
        """Return the addresses that the processes of this federation listen on."""
        mine = {pid for each in self.started.values() for pid in [each.pid, *descendants(each.pid)]}
        shown = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout
        lines = [line for line in shown.splitlines() if any(f"pid={pid}," in line for pid in mine)]
        return [line.split()[3].rsplit(":", 1)[0] for line in lines]

    def _start(self, name, *words):
        command = [word for part in words for word in part]
        home = "home-of-link" if name == "superlink" else "home"
        with (self.folder / "logs" / name).open("a") as log:
            self.started[name] = subprocess.Popen(
                [program(command[0]), *command[1:]],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self._environment(home),
                cwd=self.folder,
            )

    def _environment(self, home):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, **SETTINGS, "PATH": path, "FLWR_HOME": str(self.folder / home)}

    def _write_address(self):
        safety = f'root-certificates = "{self.folder / "ca.crt"}"'
        lines = [
            "[superlink]",
            f'default = "{LINK}"',
            f"[superlink.{LINK}]",
            f'address = "{HOST}:{self.port}"',
            safety if self.is_secure else "insecure = true",
        ]
        if self.num_virtual:
            lines.append(f"options.num-supernodes = {self.num_virtual}")
            lines.append("options.backend.client-resources.num-cpus = 1")
        (self.folder / "home" / "config.toml").write_text("\n".join(lines) + "\n")

    def _is_link_up(self):
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self.port)) == 0
