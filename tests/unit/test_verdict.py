"""A verdict as JSON and in a notebook."""

import json

import numpy as np
import pytest
import torch

import outvote as ov
from outvote.rules.verdict import MOST_ROWS

X = np.random.default_rng(0).normal(size=(6, 8))
X[4] += 50
X[5, 0] = np.nan
KRUM = ov.GAS(ov.MultiKrum(), num_groups=2)


def strict(data):
    """Through JSON without NaN and infinity."""
    return json.loads(json.dumps(data, allow_nan=False))


def test_a_verdict_is_a_dict_that_json_holds():
    verdict = KRUM.inspect(X, num_byzantine=2, seed=7, clients=[*"abcdef"])
    found = verdict.to_dict()
    assert strict(found) == found
    assert found["clients"] == [*"abcdef"]
    assert found["rejected"] == ["f"]
    assert found["dropped"] == ["e"]
    assert found["kept"] == [*"abcd"]
    assert found["scores"][:5] == verdict.scores[:5].tolist()
    assert found["scores"][5] is None
    assert found["weights"] == verdict.weights.tolist()
    assert (found["num_byzantine"], found["num_groups"], found["seed"]) == (2, 2, 7)
    assert found["base_num_byzantine"] == verdict.base_num_byzantine
    assert found["notes"] == list(verdict.notes)
    assert "update" not in found


@pytest.mark.parametrize(
    "gradients",
    [X, torch.tensor(X), [{"a": row[:2], "b": row[2:].reshape(2, 3)} for row in X]],
    ids=["array", "tensor", "dicts"],
)
def test_the_update_is_there_as_lists_if_asked_for(gradients):
    verdict = KRUM.inspect(gradients, num_byzantine=2, seed=0)
    found = strict(verdict.to_dict(with_update=True))["update"]
    if isinstance(found, dict):
        assert {name: np.shape(value) for name, value in found.items()} == {"a": (2,), "b": (2, 3)}
        found = found["a"] + np.ravel(found["b"]).tolist()
    assert np.allclose(found, KRUM.inspect(X, num_byzantine=2, seed=0).update)


def test_ids_that_json_cannot_hold_become_texts():
    ids = [np.int64(3), (1, 2), "c", 4, np.str_("e"), 1.5]
    found = ov.Krum().inspect(X, num_byzantine=1, clients=ids).to_dict()
    assert found["clients"] == [3, "(1, 2)", "c", 4, "e", "1.5"]
    assert found["rejected"] == ["1.5"]
    assert strict(found) == found


class Opaque(ov.VectorRule):
    """A rule that does not report weights."""

    def max_byzantine(self, num_clients):
        return num_clients

    def aggregate(self, gradients, info):
        return gradients.mean(dim=0)


def test_what_is_not_known_is_none_and_a_dash():
    verdict = Opaque().inspect(X[:3], num_byzantine=0)
    found = verdict.to_dict()
    assert (found["weights"], found["kept"], found["dropped"]) == (None, None, None)
    assert verdict._repr_html_().count(">–<") == 2 * 3


def test_a_notebook_shows_every_client_with_its_outcome():
    verdict = KRUM.inspect(X, num_byzantine=2, seed=7, clients=[*"abcd", "<e>", "f"])
    page = verdict._repr_html_()
    assert page.count("<tr>") == 7
    assert page.count(">kept<") == 4
    assert page.count(">dropped<") == page.count(">rejected<") == 1
    assert "&lt;e&gt;" in page
    assert "<e>" not in page
    assert f">{verdict.scores[0]:.4g}<" in page
    assert "6 clients, num_byzantine=2." in page


def test_many_clients_are_cut_and_it_is_stated():
    page = ov.Median().inspect(np.ones((MOST_ROWS + 5, 2)), num_byzantine=0)._repr_html_()
    assert page.count("<tr>") == MOST_ROWS + 1
    assert "5 more clients; to_dict() has all." in page
