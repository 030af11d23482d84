"""LoRA adapters in PEFT's layout: adapter_model.safetensors, and adapter_config.json beside it."""

import json
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from outvote.files.safetensors_file import UnusableFile
from outvote.results.disk import write_whole
from outvote.text import shortened

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
LARGEST_CONFIG = 1_000_000
"""Of a configuration that is read, in bytes."""
MOST_LISTS = 500
"""And of lists and objects in it: what nests deeper can be read, but not written again."""
MUST_AGREE = (
    "peft_type",
    "r",
    "lora_alpha",
    "target_modules",
    "rank_pattern",
    "alpha_pattern",
    "use_rslora",
    "use_dora",
    "fan_in_fan_out",
    "bias",
)
"""How the numbers become a change of the model; the same numbers with another scale are
another change."""
Config = dict[str, Any]


def read_config(weights: Path) -> Config | None:
    """Read the configuration beside an adapter; None if there is none."""
    path = weights.with_name(CONFIG)
    if weights.name != WEIGHTS or not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_CONFIG + 1)
        if len(data) > LARGEST_CONFIG:
            raise UnusableFile(f"{CONFIG} has more than {LARGEST_CONFIG:,} bytes")
        if data.count(b"[") + data.count(b"{") > MOST_LISTS:
            raise UnusableFile(f"{CONFIG} has more than {MOST_LISTS} lists and objects")
        found = json.loads(data)
    except OSError as error:
        raise UnusableFile(f"{CONFIG} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UnusableFile(f"{CONFIG} is not JSON") from error
    if not isinstance(found, dict):
        raise UnusableFile(f"{CONFIG} is not a JSON object")
    return found


def most_common_config(configs: Sequence[Config | None]) -> Config | None:
    """Return the configuration that most clients have; each entry is that of most of these.

    As a whole none need be common: with a name or date in each, that of one client would win.
    """
    texts = [_text(config) for config in configs]
    wanted = Counter(texts).most_common(1)
    agreeing = [
        config
        for config, text in zip(configs, texts, strict=True)
        if config is not None and text == wanted[0][0]
    ]
    if not agreeing:
        return None
    found = {key: _most_common_value(key, agreeing) for key in dict.fromkeys(chain(*agreeing))}
    return {key: json.loads(text) for key, text in found.items() if text}


def config_fault(own: Config | None, wanted: Config | None) -> str:
    """Return how a configuration differs in what must agree; "" where it does not."""
    if own is None or wanted is None:
        missing = f"{CONFIG} is missing" if own is None else f"has {CONFIG}, most have none"
        return "" if own is wanted else missing
    mine, other = _agreed(own), _agreed(wanted)
    for key in MUST_AGREE:
        if mine[key] != other[key]:
            got, need = (shortened(json.dumps(each[key])) for each in (mine, other))
            return f"{CONFIG} has {key} {got} instead of {need}"
    return ""


def write_config(weights: Path, config: Config) -> None:
    """Write the configuration beside an adapter, whole or not at all."""
    text = json.dumps(config, indent=2, sort_keys=True)
    write_whole(weights.with_name(CONFIG), text.encode(), stays="what was there stays")


def _most_common_value(key: str, configs: Sequence[Config]) -> str:
    """Return an entry as text; "" where most have none."""
    values = [json.dumps(own[key], sort_keys=True) if key in own else "" for own in configs]
    return Counter(values).most_common(1)[0][0]


def _agreed(config: Config) -> Config:
    found = {key: config.get(key) for key in MUST_AGREE}
    if isinstance(found["target_modules"], list):  # PEFT writes a set, in any order.
        found["target_modules"] = sorted(map(str, found["target_modules"]))
    return found


def _text(config: Config | None) -> str:
    return "" if config is None else json.dumps(_agreed(config), sort_keys=True)
