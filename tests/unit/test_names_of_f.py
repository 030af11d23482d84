"""Mistakes in passing the number of Byzantine clients are met with the right call."""

import numpy as np
import pytest

import outvote as ov

X = np.ones((5, 3))


def test_a_text_with_f_names_the_call():
    with pytest.raises(ValueError, match=r"belongs to a call, rule\(X, num_byzantine=2\)"):
        ov.make_rule("krum(f=2)")
    with pytest.raises(ValueError, match=r"belongs to a call, attack\(X, num_byzantine=2\)"):
        ov.make_attack("lie(f=2)")


def test_a_wrapper_with_f_names_a_call_that_works():
    with pytest.raises(TypeError, match=r"GAS\(Krum\(.*\)\)\(X, num_byzantine=2\)"):
        ov.GAS(ov.Krum(), f=2)


@pytest.mark.parametrize("how", ["__call__", "inspect"])
def test_a_call_of_an_attack_names_the_argument(how):
    call = getattr(ov.LIE(), how)
    with pytest.raises(TypeError, match=r"lie got an unexpected .*'f'; did you mean 'num_byz"):
        call(X, f=2)
    with pytest.raises(TypeError, match="'ownn'; did you mean 'own'"):
        call(X, num_byzantine=2, ownn=X)
    with pytest.raises(TypeError, match="lie needs the number of attackers; pass num_byzantine="):
        call(X)
