"""The paper's claims against our numbers: python tools/claims.py FOLDER > claims.md.

FOLDER holds the exports of docs/results. Every number comes from them; a claim's verdict follows
from the shares and means that stand beside it, by the rules at the end of the page. A claim whose
runs are not there is left out.
"""

import sys
from pathlib import Path

from claims_differences import differences
from claims_motivation import motivation_claims
from claims_numbers import NOISE, Claim
from claims_pairs import pair_claims
from claims_reasons import reason_claims
from claims_settings import setting_claims
from claims_shares import share_claims
from claims_sides import side_claims

HEAD = """\
# The paper's claims

Made by `python tools/claims.py docs/results > docs/results/claims.md` from the exports in this
folder; hardware, versions and commands are on the page of each table. *Best* is the paper's
measure, the largest accuracy of all rounds; *last ten* is the mean of the last ten rounds. Gains
are in points.
"""
FOOT = f"""\
## How verdicts are made

- **Pairs.** Runs of one seed share data, liars, sampling and first weights, so cells are compared
  seed by seed, and only seeds that all of those compared have count. A cell is higher or lower if
  its mean over seeds is so by more than {NOISE:g} point, else the same: one run played twice on a
  GPU differs by 0.4 points on average and 1.2 at most in its best accuracy (38 runs,
  `replays.csv.gz`). *All seeds* counts the cells in which no seed says otherwise, where there are
  two or more.
- **Means** are over cells and over the seeds that all of them have; in brackets, how many, if some
  cells have more. ± is the standard error over seeds, of which each has one value, its mean over
  the cells. It says how much other seeds would change, not other data or other settings.
- **Verdicts.** A claim about pairs holds if GAS is not lower in 90 % of the cells and higher in
  half of them, holds in part if it is not lower in half of them nor lower more often than higher,
  and does not hold otherwise. The best accuracy decides, as in the paper; where the last ten rounds
  say something else, the table shows it. Other claims count the rules, columns or measures for
  which they are true: nine tenths of them, or half. The gain
  over DnC is mild if it is less than 3 points, a loss is little if it is less than 5. A rule
  collapses where it reaches less than half of what it reaches inside GAS. Liars are kept out where
  they have less than half of their share of the clients.
- Cells without runs are left out and named. One seed says little about a few points.
"""


def main() -> None:
    """Print the page."""
    sys.stdout.write(page(Path(sys.argv[1])))


def page(folder: Path) -> str:
    """Return the page."""
    lines = [HEAD]
    claims = [
        *pair_claims(folder),
        *side_claims(folder),
        *reason_claims(folder),
        *motivation_claims(folder),
        *share_claims(folder),
        *setting_claims(folder),
    ]
    for number, claim in enumerate(claims, 1):
        lines += [f"## {number}. {claim.text}", "", *_lines(claim)]
    return "\n".join([*lines, *differences(folder), FOOT])


def _lines(claim: Claim) -> list[str]:
    lines = [f"**{claim.verdict}** ({claim.seeds}).", ""]
    if claim.table:
        head, *rows = claim.table
        rule = ["---", *("---:" for _ in head[1:])]
        lines += [f"| {' | '.join(row)} |" for row in (head, rule, *rows)] + [""]
    return lines + [f"- {note}" for note in claim.notes] + ([""] if claim.notes else [])


if __name__ == "__main__":
    main()
