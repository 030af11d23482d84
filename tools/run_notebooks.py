"""Execute the notebooks of the docs, and keep their outputs: python tools/run_notebooks.py [NAME].

Needs nbclient and ipykernel: pip install 'outvote[docs]'.
"""

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
SECONDS = 60
"""What one notebook may take on two cores."""


def executed(path: Path, timeout: float = 10 * SECONDS) -> Any:
    """Return a notebook with the outputs that its cells have now; an error of a cell is raised."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=timeout,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
            store_widget_state=False,
            record_timing=False,
        )
        client.execute()
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            output.pop("metadata", None) if output.output_type == "stream" else None
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def main(names: list[str]) -> None:
    """Execute and write those whose names begin so; without names, all."""
    import nbformat

    for path in sorted(FOLDER.glob("*.ipynb")):
        if names and not any(path.stem.startswith(name) for name in names):
            continue
        start = time.monotonic()
        notebook = executed(path)
        nbformat.write(notebook, path)
        sys.stdout.write(f"{path.name}: {time.monotonic() - start:.0f} s\n")


if __name__ == "__main__":
    main(sys.argv[1:])
