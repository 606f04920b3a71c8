"""torch's "cuda" over a B200 in software.

torch comes before any part of this: importing torch takes it over (takeover.py), and that needs
all parts whole.
"""

import torch  # noqa: F401
