"""`eval.py compare`: submissions side by side, and how far a modelled difference can be trusted."""
