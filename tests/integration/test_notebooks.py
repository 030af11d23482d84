"""The notebooks run, in the order of their cells, in less than a minute on two cores."""

import resource

import pytest

import run_notebooks

NOTEBOOKS = sorted(run_notebooks.FOLDER.glob("*.ipynb"))
NAMES = ["a-federation-of-your-own-model", "reading-an-audit", "your-rule-against-every-attack"]


def test_there_are_three_notebooks():
    assert [path.stem for path in NOTEBOOKS] == NAMES


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the packages of Jupyter
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_the_kinds_of_output_that_are_kept(path):
    pytest.importorskip("nbclient", reason="pip install 'outvote[docs]'")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    before = cpu_seconds()
    made = run_notebooks.executed(path)
    # CPU time: a busy machine takes longer by the clock.
    assert cpu_seconds() - before < run_notebooks.SECONDS
    kept = nbformat.read(path, as_version=4)
    for new, old in zip(made.cells, kept.cells, strict=True):
        assert kinds(new) == kinds(old), new.source


def kinds(cell):
    """The kinds of output of a cell; how often it printed depends on buffers."""
    found = []
    for output in cell.get("outputs", []):
        kind = sorted(output.get("data", ["stream"]))
        if not found or found[-1] != kind:
            found.append(kind)
    return found
