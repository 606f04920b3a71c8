"""What must stay true; folders mirror the packages, `oracles` gives expected values."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
