"""CTAs abreast: n CTAs of a grid run as one machine, whose warps have 32 n lanes.

A grid's CTAs mostly take the same steps, and numpy takes hardly longer for 2048 lanes than for 32.
So the CTAs that come after the first ones run abreast. Warp w of all of them is one warp, in which
lanes 32 i to 32 i + 31 are those of CTA i. It diverges and meets again as any other warp. The code
is written by the same writer from the same instructions (writer.py). An instruction without state
is the same function on longer arrays; forms.py says by effect how one with state is carried out.

What makes it right:

1.  CTAs without a cluster have nothing in common but global memory. What one of them writes there
    no other of them writes or reads (ledger.py): then their order shows nowhere. A kernel in which
    CTAs tell one another something reads what another has written, and is not run so. Several CTAs
    may update a place by atomics of which nobody uses the result, and nobody reads it otherwise:
    these commute, or are carried out in the order of the CTAs (updates.py).
2.  Whatever is not alike, refused or at fault drops the run (NotAbreast): its stores are taken
    back, and the CTAs run one after the other, from their beginning. Reports of errors, and
    findings, come from that run.
3.  With the checker, only CTAs that would follow run abreast: each step is the same in all of them,
    and one that a checked CTA has taken. Or data decide what they do, and the accesses of all their
    threads are in order (checker/abreast/).

A dropped run has cost what a few of its CTAs cost one by one, and a kernel that was dropped is not
tried again. But if one of many CTAs differs from all others, it is left to run by itself, and the
others run abreast once more. B200_ABREAST=0 switches all of it off; another number is the most CTAs
that run abreast; "64:0" runs the shortest launches so, too.
"""
