"""A picture without a graphics library: boxes and 5 x 7 letters on pixels, written as PNG (RFC
2083).
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np

FIRST, GLYPH_WIDTH = 32, 6
# Columns of the letters from the space on, five bytes each, lowest bit on top.
FONT = bytes.fromhex(
    "0000000000 00005f0000 0007000700 147f147f14 242a7f2a12 2313086462 3649552250 0005030000 "
    "001c224100 0041221c00 "
    "14083e0814 08083e0808 0050300000 0808080808 0060600000 2010080402 3e5149453e 00427f4000 "
    "4261514946 2141454b31 "
    "1814127f10 2745454539 3c4a494930 0171090503 3649494936 064949291e 0036360000 0056360000 "
    "0814224100 1414141414 "
    "0041221408 0201510906 324979413e 7e1111117e 7f49494936 3e41414122 7f4141221c 7f49494941 "
    "7f09090901 3e4149497a "
    "7f0808087f 00417f4100 2040413f01 7f08142241 7f40404040 7f020c027f 7f0408107f 3e4141413e "
    "7f09090906 3e4151215e "
    "7f09192946 4649494931 01017f0101 3f4040403f 1f2040201f 3f4038403f 6314081463 0708700807 "
    "6151494543 007f414100 "
    "0204081020 0041417f00 0402010204 4040404040 0001020400 2054545478 7f48444438 3844444420 "
    "384444487f 3854545418 "
    "087e090102 0c5252523e 7f08040478 00447d4000 2040443d00 7f10284400 00417f4000 7c04180478 "
    "7c08040478 3844444438 "
    "7c14141408 081414187c 7c08040408 4854545420 043f444020 3c4040207c 1c2040201c 3c4030403c "
    "4428102844 0c5050503c "
    "4464544c44 0008364100 00007f0000 0041360800 0804081008"
)


class Canvas:
    """White pixels, uint8 [height, width, 3]."""

    def __init__(self, width: int, height: int):
        self.pixels = np.full((height, width, 3), 255, np.uint8)

    def box(self, left: int, top: int, right: int, bottom: int, colour: tuple[int, int, int]):
        self.pixels[max(0, top) : bottom, max(0, left) : right] = colour

    def text(self, left: int, top: int, words: str):
        """Black letters; characters outside ASCII become question marks."""
        for i, letter in enumerate(words.encode("ascii", "replace")):
            at = (letter - FIRST) * 5
            if not 0 <= at < len(FONT):
                continue
            columns = np.frombuffer(FONT[at : at + 5], np.uint8)
            ink = (columns[None, :] >> np.arange(8)[:, None] & 1).astype(bool)
            x = left + GLYPH_WIDTH * i
            place = self.pixels[top : top + 8, x : x + 5]
            place[ink[: place.shape[0], : place.shape[1]]] = 0


def write_png(path: Path, pixels: np.ndarray):
    """Write uint8 [height, width, 3] as an RGB PNG."""
    height, width, _ = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    parts = [
        b"\x89PNG\r\n\x1a\n",
        chunk(b"IHDR", header),
        chunk(b"IDAT", zlib.compress(rows.tobytes())),
        chunk(b"IEND", b""),
    ]
    path.write_bytes(b"".join(parts))
