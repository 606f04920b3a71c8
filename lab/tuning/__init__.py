"""Which configuration of the kernel is fast: modelled, and as the first call chooses."""
