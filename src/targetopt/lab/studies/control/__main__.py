"""``python -m targetopt.lab.studies.control results/control``: run what is missing, and write the page."""

import sys
from pathlib import Path

from targetopt.lab.studies.control import page, study

if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "results/control")
    study.run(folder, names=sys.argv[2:], tell=lambda text: print(text, flush=True))
    page.write(folder)
