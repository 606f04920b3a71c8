"""Whether a file would be taken by the leaderboards' upload and by their runner: `eval.py lint`.

boards      what the boards and their runner have, with where it stands
submission  the file as it is looked at: bytes, text, syntax tree
reach       what of the file a board executes
upload, directives, imports, program, guard    the rules, by what they read
rules       all of them, in one table with their sources
command     eval.py lint, and the last step of leaderboard and official
"""
