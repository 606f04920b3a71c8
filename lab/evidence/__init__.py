"""What the kernel takes for granted of a B200, form by form, and who else has relied on it.

forms.py names the forms of one launch: instructions, descriptors, tensormaps, launch attributes.
watch.py runs the first and last clusters of a launch in the emulator and collects them; kernels.py
says which launches: what is picked for the official cases under several cluster tables, and the
covering set of configurations. rows.py reads docs/results/evidence.json, whose rows name forms and
their witnesses, and finds forms without a row; lab/tables/evidence.py makes the tables
of docs/lab/evidence.md from it.
"""
