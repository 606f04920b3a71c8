"""Where a wrong result differs, and which known mistake reproduces it."""
