"""The check of words finds what it should, in prose and in identifiers, and nothing else."""

import pytest

import words


def found(text):
    return [each.word for each in words.findings(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def num_liars(): ...", ["liars"]),
        ("class LiarShare: ...", ["liar"]),
        ("NUM_PLAYED = 1", ["played"]),
        ("Told of two liars.", ["told", "liars"]),
        ("the run that it is told,\nof\n# which", ["told", "of which"]),
        ("What became of it", ["What became of"]),
        ('has_memory = "x"', ["has_memory"]),
        ("LIE(z=1.5) is displayed; the turnedness of a headroom", []),
        ("two decimal places", []),
        ("two places", ["places"]),
    ],
)
def test_words_are_found_whole_and_whatever_their_case(text, expected):
    assert found(text) == expected


def test_a_finding_names_line_and_remedy():
    (each,) = words.findings("one\ntwo pictures", "a.py")
    assert (each.path, each.line, each.word, each.use) == ("a.py", 2, "pictures", "image or sample")


def test_history_is_not_read_and_counts_are_by_package(tmp_path, capsys):
    for name in ("src/outvote/rules/a.py", "src/outvote/b.py", "docs/decisions/1.md", "README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a liar")
    assert words.main([str(tmp_path), "--count"]) == 1
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["README.md", "1"],
        ["src/outvote", "1"],
        ["src/outvote/rules", "1"],
        ["in", "all", "3"],
    ]


def test_a_clean_tree_passes_and_each_exception_has_a_reason(tmp_path, capsys):
    (tmp_path / "README.md").write_text("Byzantine clients")
    assert words.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "words 0\n"
    assert all(words.EXCEPTIONS.values())
