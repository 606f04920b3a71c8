"""python -m lab suites (lab/suites/study.py)."""

import sys

from lab.suites.study import main

if __name__ == "__main__":
    sys.exit(main())
