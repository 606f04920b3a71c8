"""Which configuration of the kernel is fast, modelled."""
