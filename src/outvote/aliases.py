"""Other names of rules and attacks: those of papers and other libraries."""

RULE_ALIASES: dict[str, str] = {
    "fedavg": "mean",
    "average": "mean",
    "coordinate-wise-median": "median",
    "cwmed": "median",
    "comed": "median",
    "rbtm": "trimmed-mean",
    "tm": "trimmed-mean",
    "trmean": "trimmed-mean",
    "cwtm": "trimmed-mean",
    "geomed": "geometric-median",
    "cc": "centered-clipping",
    "minimum-diameter-averaging": "mda",
    "divide-and-conquer": "dnc",
}
ATTACK_ALIASES: dict[str, str] = {
    "sign-flip": "bit-flip",
    "no-attack": "none",
    "optimal-alie": "optimal-lie",
    "empire": "ipm",
}
