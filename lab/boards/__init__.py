"""Times that a leaderboard or a profiler gave, beside the modelled ones."""
