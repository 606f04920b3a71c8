"""The H200 as a witness of the clock: the same model with constants that were measured on an H200
(constants_h200.toml). Its predictions can be compared with that GPU (`python -m lab h200_model`).

Once this is imported, `Options(device="H200")` is known to the clock.
"""

from __future__ import annotations

from pathlib import Path

from b200.clock.constants import BY_NAME, read_table
from b200.clock.devices import DEVICES, Device

TABLE = Path(__file__).with_name("constants_h200.toml")

H200 = Device(
    "H200",
    1.98,
    (16, 16, 16, 16, 16, 16, 18, 18),  # rig clusters: the order of CTAs
    4,
    read_table(TABLE, BY_NAME),
)
DEVICES[H200.name] = H200
