"""What happens in the process of a case: load the submission, make inputs, run, check, time."""
