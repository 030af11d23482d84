"""Fail on words that the field does not use: python tools/words.py [--count] [ROOT].

The list is section 9 of the design. Identifiers are split at underscores and capitals, so that
`numLiars` and `num_liars` are found as well as prose. Data and records of benchmarks are not read.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

INSTEAD = {
    "run, train or execute": "play plays played playing player players",
    "image or sample": "picture pictures pictured",
    "Byzantine client": "liar liars lying lies lied",
    "assumed, reported, printed or returned": "tell tells told telling untold",
    "reports, prints, returns or states": "says said",
    "assume": "reckon reckons reckoned reckoning",
    "aggregate, score or verdict": "judge judges judged judging judgement judgements",
    "keep, select or trust": "believe believes believed believing",
    "buffer": "room rooms",
    "transposed": "turned",
    "duplicates": "twin twins",
    "chunk": "slab slabs",
    "cancellation check": "doubt doubts doubtful",
    "indices or positions": "places",
    "builder, cache, stack or worker": "workshop shelf shelves wave waves crew crews lane lanes",
    "temporary file": "draft drafts",
    "metadata or notes": "remark remarks remarked",
    "a client, a user or someone": "somebody",
    "learned, or local_updates": "learnt",
    "inv_std": "steepness",
    "score, weight or verdict": "opinion opinions",
}
PHRASES = {
    "of which": "two sentences",
    "(?:what|whatever) (?:became|becomes) of": "outcome",
    "(?:hand|hands|handed|handing) over": "pass or give",
    "(?:know|knows|knew|known) of": "know",
    "has_memory": "has_state",
    "cut_windows": "im2col",
    "own_code": "user code",
}
BANNED = {word: use for use, words in INSTEAD.items() for word in words.split()}
READ = (
    *(f"{name}/**/*.{kind}" for name in ("src", "docs") for kind in ("py", "toml", "md")),
    *(f"src/**/*.{kind}" for kind in ("html", "j2", "css", "js")),
    *(f"{name}/**/*.py" for name in ("tests", "benchmarks", "tools", "examples")),
    *("examples/**/*.toml", "tools/*.toml", "benchmarks/**/*.md", "*.md", "Makefile", "*.toml"),
)
EXCEPTIONS = {
    "CHANGELOG.md": "names the words that were replaced",
    "docs/decisions/*": "history",
    "docs/lab-notes.md": "history",
    "tools/words.py": "this list",
    "tests/unit/test_words.py": "tests this list",
    "src/outvote/results/renamed.py": "names of 0.1 that are still read",
    "tests/trajectories.py:pictures": "likewise",
    "tests/trajectories.py:told": "likewise",
    "tests/properties/test_attack_conformance.py:has_memory": "likewise",
    "tests/unit/test_legacy_rules.py:has_memory": "likewise",
    "src/outvote/rules/legacy.py:has_memory": "likewise",
    "src/outvote/rules/legacy.py:told": "likewise",
    "src/outvote/attacks/context.py:places": "likewise",
    "src/outvote/attacks/context.py:judge": "likewise",
    "tests/unit/test_legacy_rules.py:told": "likewise",
    "tests/unit/test_legacy_rules.py:places": "likewise",
    "tests/unit/test_legacy_rules.py:judge": "likewise",
    "src/outvote/attacks/attack.py:has_memory": "likewise",
    "src/outvote/cli/table.py:liars": "likewise: --metric liars-share",
    "src/outvote/attacks/mimic.py:learnt": "the verb: mimic learns its direction",
    "docs/reference/attacks.md:learnt": "likewise",
    "benchmarks/results/README.md:learnt": "likewise",
    "tests/attack_oracles.py:learnt": "likewise",
    "tests/unit/test_mimic.py:learnt": "likewise",
}
"""Files, or words in a file, that are not findings, and why."""
ALLOWED = {
    "decimal places": "digits after the point",
    "takes place": "happens",
    "second opinion": "another implementation to compare with",
    "too few rounds to tell": "to distinguish",
}

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_GAP = r"[ #]*\\s[ #]*"  # A phrase is found across the end of a line, in a comment too.
_PHRASE = {re.compile(rf"(?i)\b{re.sub(' ', _GAP, key)}\b"): PHRASES[key] for key in PHRASES}


class Finding(NamedTuple):
    """One banned word and where it stands."""

    path: str
    line: int
    word: str
    use: str


def findings(text: str, path: str = "") -> Iterator[Finding]:
    """Yield the banned words of a text, line by line, then its phrases."""
    for number, line in enumerate(text.splitlines(), 1):
        kept = line.lower()
        for term in ALLOWED:
            kept = kept.replace(term, " " * len(term))
        for match in _WORD.finditer(line):
            word = match.group().lower()
            if word in BANNED and kept[match.start() : match.end()] == word:
                yield Finding(path, number, word, BANNED[word])
    for pattern, use in _PHRASE.items():
        for match in pattern.finditer(text):
            number = text.count("\n", 0, match.start()) + 1
            yield Finding(path, number, " ".join(match.group().replace("#", "").split()), use)


def search(root: Path) -> list[Finding]:
    """Return the banned words of all files that are read."""
    paths = {path.relative_to(root).as_posix() for glob in READ for path in root.glob(glob)}
    names = [name for name in sorted(paths) if not any(fnmatch(name, no) for no in EXCEPTIONS)]
    found = (each for name in names for each in findings((root / name).read_text(), name))
    return [each for each in found if f"{each.path}:{each.word}" not in EXCEPTIONS]


def package_of(path: str) -> str:
    """Return the package or folder that a path is counted for."""
    parts = path.split("/")
    return "/".join(parts[: min(3, len(parts) - 1)] if parts[0] == "src" else parts[:1])


def main(words: list[str]) -> int:
    """Print each finding, or the number per package; return 1 if there is one."""
    is_count = "--count" in words
    root = next((Path(word) for word in words if word != "--count"), Path(__file__).parents[1])
    found = search(root)
    counts = Counter(package_of(each.path) for each in found)
    lines = [f"{each.path}:{each.line}: {each.word} -> use {each.use}" for each in found]
    lines = [f"{name:30} {counts[name]:6}" for name in sorted(counts)] if is_count else lines
    sys.stdout.write("\n".join([*lines, f"{'in all' if is_count else 'words'} {len(found)}", ""]))
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
