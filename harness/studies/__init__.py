"""What was learned of the kernel, of the clock, and of other people's kernels; each a command."""
