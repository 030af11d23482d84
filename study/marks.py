"""Tables that tools put between two marks of a page."""


def put_between(page: str, begin: str, end: str, table: str) -> str:
    """Return the page with the table between its marks, whatever stood there."""
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{table}\n\n{end}{after}"
