"""Bodies of kernels with a planted bug, which CTAs abreast have to report as CTAs one by one do.
BUGS_APART: CTA 5 alone has it, as data have it.
"""

from __future__ import annotations

from tests.b200.chip.ctas_abreast import CTAS, LOAD, OTHER, STORE, THREADS

# CTA 5 alone has a bug, as data have it: `given` of its thread 9 is odd, say.
WAYS = f"""
{LOAD}
and.b32 %r11, %r10, 1;
setp.ne.u32 %p1, %r11, 0;
setp.eq.u32 %p2, %r1, 5;
and.pred %p3, %p1, %p2;
st.shared.u32 [%r5], %r10;
bar.sync 0;
@%p1 st.shared.u32 [%r5], %r1;
"""
BUGS_APART = {
    "another warp's word": f"{WAYS} xor.b32 %r12, %r5, 128; @%p3 ld.shared.u32 %r10, [%r12]; "
    f"bar.sync 0; {STORE}",
    "another lane's word": f"{WAYS} xor.b32 %r12, %r5, 4; @%p3 ld.shared.u32 %r10, [%r12]; "
    f"bar.sync 0; {STORE}",
    "a word that another warp reads": f"""
        {WAYS}
        bar.sync 0;
        xor.b32 %r12, %r5, 128;
        ld.shared.u32 %r10, [%r12];
        @%p3 st.shared.u32 [%r5], %r2;
        {STORE}""",
    "a word that another lane reads": f"""
        {WAYS}
        bar.sync 0;
        xor.b32 %r12, %r5, 4;
        ld.shared.u32 %r10, [%r12];
        @%p3 st.shared.u32 [%r5], %r2;
        {STORE}""",
    "a word that all read": f"""
        {WAYS}
        bar.sync 0;
        ld.shared.u32 %r10, [%r3 + 36];
        @%p3 st.shared.u32 [%r5], %r2;
        {STORE}""",
    "one word for all": f"{WAYS} bar.sync 0; @%p3 st.shared.u32 [%r3 + 512], %r2; {STORE}",
    "a word that nobody has written": f"{WAYS} @%p3 ld.shared.u32 %r10, [%r5 + 512]; {STORE}",
    "in place, another warp's word": f"""
        {WAYS}
        xor.b32 %r12, %r4, 32;
        mul.wide.u32 %rd5, %r12, 4;
        add.u64 %rd5, %rd2, %rd5;
        @%p1 st.global.u32 [%rd4], %r2;
        @%p3 ld.global.u32 %r10, [%rd5];
        {STORE}""",
    "another CTA's place": f"""
        {WAYS}
        @%p3 sub.u64 %rd3, %rd3, 256;
        @%p1 st.global.u32 [%rd3], %r10;""",
    "a barrier that a warp leaves out": f"""
        {WAYS}
        @%p2 bra L;
        bar.sync 0;
        L: xor.b32 %r12, %r5, 128;
        ld.shared.u32 %r10, [%r12];
        {STORE}""",
    "a barrier of each warp by itself": f"""
        {WAYS}
        shr.u32 %r12, %r2, 5;
        bar.sync %r12, 32;
        {OTHER}
        {STORE}""",
    "a barrier that a warp does not wait at": f"""
        {WAYS}
        setp.ge.u32 %p4, %r2, 32;
        @%p4 bar.arrive 1, 64;
        @!%p4 bar.sync 1, 64;
        @%p4 st.shared.u32 [%r5], %r2;
        {OTHER}
        {STORE}""",
    "a warp that has left": f"""
        {WAYS}
        setp.ge.u32 %p4, %r2, 32;
        @%p4 ret;
        bar.sync 0;
        {OTHER}
        {STORE}""",
}
BUGS = {
    "bytes of other lanes": f"""
        {LOAD}
        xor.b32 %r11, %r1, %r2;
        and.b32 %r11, %r11, 7;
        setp.eq.u32 %p1, %r11, 0;
        cvt.u64.u32 %rd5, %r4;
        add.u64 %rd5, %rd1, %rd5;
        @%p1 st.global.u8 [%rd5], %r10;
        @%p1 st.global.u8 [%rd5], %r4;""",
    "a race everywhere": f"{LOAD} st.shared.u32 [%r5], %r10; {OTHER} {STORE}",
    "a race in CTA 5": f"""
        {LOAD}
        st.shared.u32 [%r5], %r10;
        setp.eq.u32 %p1, %r1, 5;
        @%p1 bra L;
        bar.sync 0;
        L: {OTHER} {STORE}""",
    "a race by another address": f"""
        {LOAD}
        st.shared.u32 [%r5], %r10;
        setp.eq.u32 %p1, %r1, 5;
        selp.u32 %r12, 128, 0, %p1;
        xor.b32 %r11, %r5, %r12;
        ld.shared.u32 %r10, [%r11];
        {STORE}""",
    "two CTAs at one place": f"""
        {LOAD}
        setp.eq.u32 %p1, %r1, 5;
        selp.u32 %r12, 256, 0, %p1;
        cvt.u64.u32 %rd5, %r12;
        sub.u64 %rd3, %rd3, %rd5;
        {STORE}""",
    "two CTAs at one place, later": f"""
        {LOAD}
        setp.eq.u32 %p1, %r1, 3;
        @%p1 st.global.u32 [%rd3 + 256], %r2;
        {STORE}""",
    "a fault in CTA 5": f"""
        {LOAD}
        st.global.u32 [%rd3 + {4 * CTAS * THREADS}], %r2;
        setp.eq.u32 %p1, %r1, 5;
        selp.u32 %r12, 1, 0, %p1;
        shl.b32 %r12, %r12, 30;
        cvt.u64.u32 %rd5, %r12;
        add.u64 %rd3, %rd3, %rd5;
        {STORE}""",
    "lanes at one place": f"""
        {LOAD}
        setp.eq.u32 %p1, %r1, 5;
        @%p1 and.b64 %rd3, %rd3, -8;
        {STORE}""",
    "in place, but for CTA 5": """
        ld.global.u32 %r10, [%rd4];
        setp.eq.u32 %p1, %r1, 5;
        selp.u32 %r12, 128, 0, %p1;
        cvt.u64.u32 %rd5, %r12;
        xor.b64 %rd6, %rd9, %rd5;
        add.u64 %rd6, %rd6, %rd2;
        st.global.u32 [%rd6], %r10;""",
    "in place, next to another CTA": """
        ld.global.u32 %r10, [%rd4 + 4];
        st.global.u32 [%rd4], %r10;""",
    "in place, where others read": f"""
        mul.wide.u32 %rd5, %r2, 4;
        add.u64 %rd5, %rd2, %rd5;
        ld.global.u32 %r10, [%rd5];
        setp.eq.u32 %p1, %r1, 5;
        @%p1 sub.u64 %rd4, %rd4, {4 * (CTAS + 5) * THREADS};
        st.global.u32 [%rd4 + {4 * CTAS * THREADS}], %r10;""",
    "in place, where CTA 0 was": """
        ld.global.u32 %r10, [%rd4];
        st.global.u32 [%rd4], %r10;
        setp.ne.u32 %p1, %r1, 0;
        @%p1 ret;
        st.global.u32 [%rd4 + 768], %r10;""",
    "of others, in place": f"""
        {LOAD}
        st.global.u32 [%rd3], %r10;
        ld.global.u32 %r11, [%rd1 + 4];
        st.global.u32 [%rd3], %r11;""",
    "uninitialised": f"{LOAD} st.shared.u32 [%r5], %r10; ld.shared.u32 %r10, [%r5 + 512]; {STORE}",
    "uninitialised, used by CTA 4": f"""
        ld.shared.u32 %r11, [%r5 + 512];
        {LOAD}
        setp.eq.u32 %p1, %r1, 4;
        @%p1 add.u32 %r10, %r10, %r11;
        {STORE}""",
    "copies of other threads' words": f"""
        cp.async.ca.shared.global [%r5], [%rd4], 4;
        setp.eq.u32 %p1, %r1, 5;
        @%p1 bra L;
        cp.async.wait_all;
        bar.sync 0;
        L: {OTHER} {STORE}""",
    "a copy of nobody's memory": f"""
        setp.eq.u32 %p1, %r1, 5;
        selp.u32 %r12, 1, 0, %p1;
        shl.b32 %r12, %r12, 30;
        cvt.u64.u32 %rd5, %r12;
        add.u64 %rd4, %rd4, %rd5;
        cp.async.ca.shared.global [%r5], [%rd4], 4;
        cp.async.wait_all;
        ld.shared.u32 %r10, [%r5];
        {STORE}""",
    "a place stored to by another lane": f"""
        {LOAD}
        {STORE}
        xor.b32 %r11, %r4, 1;
        mul.wide.u32 %rd5, %r11, 4;
        add.u64 %rd5, %rd1, %rd5;
        st.global.u32 [%rd5], %r2;""",
    "a place stored to by another warp": f"""
        {LOAD}
        {STORE}
        xor.b32 %r11, %r4, 32;
        mul.wide.u32 %rd5, %r11, 4;
        add.u64 %rd5, %rd1, %rd5;
        st.global.u32 [%rd5], %r2;""",
    "a place stored to twice, and by CTA 0 before": f"""
        {LOAD}
        setp.eq.u32 %p1, %r1, 0;
        @%p1 st.global.u32 [%rd3 + 512], %r10;
        {STORE}
        add.u32 %r10, %r10, 1;
        {STORE}""",
    "stores that overlap": f"""
        {LOAD}
        st.global.u8 [%rd3 + 1], %r2;
        {STORE}
        xor.b32 %r11, %r4, 1;
        mul.wide.u32 %rd5, %r11, 4;
        add.u64 %rd5, %rd1, %rd5;
        st.global.u16 [%rd5], %r2;""",
    "reads what CTA 6 writes": f"""
        ld.global.u32 %r10, [%rd2 + 4];
        {STORE}
        setp.ne.u32 %p1, %r1, 6;
        @%p1 ret;
        st.global.u32 [%rd2 + 4], %r10;""",
    "a flag between CTAs": f"""
        setp.eq.u32 %p1, %r1, 5;
        @%p1 bra S;
        L: ld.relaxed.gpu.global.u32 %r10, [%rd1 + {8 * CTAS * THREADS - 4}];
        setp.eq.u32 %p2, %r10, 0;
        @%p2 bra L;
        {STORE}
        ret;
        S: mov.u32 %r11, 1;
        st.relaxed.gpu.global.u32 [%rd1 + {8 * CTAS * THREADS - 4}], %r11;""",
    "a barrier that not all come to": f"""
        {LOAD}
        setp.eq.u32 %p1, %r1, 5;
        setp.lt.u32.and %p2, %r2, 32, %p1;
        @%p2 bra L;
        L: @!%p2 bar.sync 0, 64;
        {STORE}""",
}
# No bugs, but no CTA may be carried out beside another, or none is
RIGHT = ("a flag between CTAs", "bytes of other lanes")
