"""The instructions of PTX as text: which forms exist, and which of them the emulator has."""
