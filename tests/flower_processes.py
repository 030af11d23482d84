"""Processes and ports of this machine, for federations in tests."""

import os
import socket
import sys
import time
from pathlib import Path

HOST = "127.0.0.1"
# What a federation on a busy machine may take to do one thing.
PATIENCE = 240.0


def program(name):
    """Return a program that came with Flower."""
    return str(Path(sys.executable).parent / name)


def free_port():
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def wait_until(is_so, what, patience=PATIENCE, pause=0.2):
    """Wait until something is so."""
    end = time.monotonic() + patience
    while not is_so():
        assert time.monotonic() < end, f"waited {patience:g} s in vain until {what}"
        time.sleep(pause)


def descendants(pid):
    """Return the ids of the processes that a process has started, and those these have started."""
    children = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, new = [], [pid]
    while new:
        new = [child for parent in new for child in children.get(parent, [])]
        found += new
    return found


def left_over(folder):
    """Return the ids of the processes that keep their files in a folder."""
    mark, found = os.fsencode(f"FLWR_HOME={folder}"), []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in environment.read_bytes():
                found.append(int(environment.parent.name))
        except OSError:
            continue
    return found
