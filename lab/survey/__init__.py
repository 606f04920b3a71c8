"""A survey: candidates of a problem, run on a B200; what came back becomes the table of picks."""
