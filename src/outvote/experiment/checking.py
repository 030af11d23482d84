"""Settings that cannot be played are refused before anything is loaded."""

from math import isfinite

import msgspec

from outvote.attacks.attack_spec import make_attack
from outvote.data.loader import find_entry
from outvote.engine.federation import count_sampled
from outvote.errors import closest
from outvote.experiment.spec import Data, Members, Spec
from outvote.models.model_spec import MODELS
from outvote.rules.rule_spec import make_rule


def checked(spec: Spec) -> Spec:
    """Return the settings in one form: another spelling of the same run is the same run."""
    for name, least in (("rounds", 1), ("evaluate_every", 1), ("seed", 0), ("root_size", 1)):
        _check_least(name, getattr(spec, name), least)
    _check_data(spec.data)
    _check_members(spec.federation, spec.data)
    if spec.model.name not in MODELS:
        raise ValueError(
            f"model.name: unknown model {spec.model.name!r}; {closest(spec.model.name, MODELS)}"
        )
    return msgspec.structs.replace(
        spec,
        rule=str(make_rule(spec.rule)),
        attack=str(make_attack(spec.attack)),
        data=_without_the_idle(spec.data),
    )


def num_sampled(members: Members, num_clients: int) -> int:
    """Return how many clients take part in a round."""
    ratio, number = _ratio_or_number(members.sampled)
    return count_sampled(num_clients, ratio=ratio, number=number)


def check_assumed(members: Members, num_sampled: int) -> None:
    """Refuse to tell the server of more liars than there are clients in a round."""
    if isinstance(members.assumed_byzantine, int) and members.assumed_byzantine > num_sampled:
        raise ValueError(
            f"federation.assumed_byzantine must be at most the {num_sampled} clients sampled in a round, got "
            f"{members.assumed_byzantine}; lower it, or write a fraction."
        )


def _ratio_or_number(value: float) -> tuple[float | None, int | None]:
    return (None, value) if isinstance(value, int) else (value, None)


def _check_data(data: Data) -> None:
    _check_size(data)
    if not (isfinite(data.beta) and data.beta > 0):
        raise ValueError(f"data.beta must be larger than 0 and finite, got {data.beta}.")
    _check_least("data.min_size", data.min_size, 1)
    _check_least("data.shards_per_client", data.shards_per_client, 1)


def _check_size(data: Data) -> None:
    can_choose = any("size" in form.options for form in find_entry(data.name).forms)
    if data.image_size is None:
        return
    if not can_choose:
        raise ValueError(
            f"data.image_size is for folders of pictures such as imagenet12, got {data.image_size} "
            f"for {data.name}; leave it out."
        )
    _check_least("data.image_size", data.image_size, 1)


def _check_members(members: Members, data: Data) -> None:
    for name in ("byzantine", "sampled", "assumed_byzantine"):
        value = getattr(members, name)
        if isinstance(value, float) and not 0 <= value <= 1:
            raise ValueError(
                f"federation.{name}: a number with a point is a fraction from 0 to 1, got {value}; "
                "write a count without a point."
            )
        if isinstance(value, int):
            _check_least(f"federation.{name}", value, 0)
    if members.num_clients == "all":
        if data.partition != "by-group":
            raise ValueError(
                "federation.num_clients = 'all' is for data.partition = 'by-group', got "
                f"{data.partition!r}; give a number."
            )
        return
    _check_least("federation.num_clients", members.num_clients, 1)
    check_assumed(members, num_sampled(members, members.num_clients))
    if isinstance(members.byzantine, int) and members.byzantine > members.num_clients:
        raise ValueError(
            f"federation.byzantine must be at most the {members.num_clients} clients there are, "
            f"got {members.byzantine}."
        )


def _check_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}.")


def _without_the_idle(data: Data) -> Data:
    """Set what the partition does not look at to its default, and a size that is the default."""
    usual = Data()
    if data.image_size == find_entry(data.name).shape[0]:
        data = msgspec.structs.replace(data, image_size=None)
    if data.partition != "dirichlet":
        data = msgspec.structs.replace(
            data, beta=usual.beta, balance=usual.balance, min_size=usual.min_size
        )
    if data.partition != "shards":
        data = msgspec.structs.replace(data, shards_per_client=usual.shards_per_client)
    return data
