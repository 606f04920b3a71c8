"""Bodies of kernels that CTAs carry out abreast, by what is in them. ALIKE: all CTAs go one way.
APART: data decide which lanes do what, and where, so each CTA goes a way of its own.
"""

from __future__ import annotations

from tests.b200.chip.ctas_abreast import CTAS, LOAD, OTHER, STORE, THREADS

ALIKE = {
    "shared memory": f"{LOAD} st.shared.u32 [%r5], %r10; bar.sync 0; {OTHER} {STORE}",
    "a loop that diverges": f"""
        {LOAD}
        and.b32 %r12, %r10, 31;
        mov.u32 %r13, 1;
        L: mad.lo.u32 %r13, %r13, 5, 1;
        setp.eq.u32 %p1, %r12, 0;
        @%p1 bra M;
        sub.u32 %r12, %r12, 1;
        bra L;
        M: mov.u32 %r10, %r13;
        {STORE}""",
    "CTAs that go different ways": f"""
        {LOAD}
        setp.lt.u32 %p1, %r1, 3;
        @%p1 bra L;
        mul.lo.u32 %r10, %r10, 3;
        setp.eq.u32 %p2, %r1, 5;
        @%p2 add.u32 %r10, %r10, 1;
        L: {STORE}""",
    "a loop as long as the CTA says": f"""
        mov.u32 %r10, %r1;
        mov.u32 %r12, %r1;
        L: add.u32 %r10, %r10, %r2;
        sub.u32 %r12, %r12, 1;
        setp.gt.s32 %p1, %r12, 0;
        @%p1 bra L;
        {STORE}""",
    "a long loop": f"""
        {LOAD}
        mov.u32 %r12, 0;
        L: xor.b32 %r10, %r10, %r12;
        add.u32 %r12, %r12, 1;
        setp.lt.u32 %p1, %r12, 5000;
        @%p1 bra L;
        {STORE}""",
    "lanes that leave": f"""
        {LOAD}
        and.b32 %r12, %r10, 3;
        setp.eq.u32 %p1, %r12, 0;
        @%p1 ret;
        {STORE}""",
    "warps that leave": f"""
        {LOAD}
        setp.ge.u32 %p1, %r2, 32;
        @%p1 ret;
        shfl.sync.bfly.b32 %r10, %r10, 16, 31, -1;
        {STORE}""",
    "shuffles": f"""
        {LOAD}
        shfl.sync.up.b32 %r11|%p1, %r10, 3, 0, -1;
        selp.u32 %r12, 1, 2, %p1;
        shfl.sync.down.b32 %r13, %r10, %r12, 31, -1;
        and.b32 %r14, %r10, 31;
        shfl.sync.idx.b32 %r15, %r11, %r14, 31, -1;
        shfl.sync.idx.b32 %r16, %r11, 7, 31, -1;
        add.u32 %r10, %r13, %r15;
        add.u32 %r10, %r10, %r16;
        {STORE}""",
    "shuffles of a part": f"""
        {LOAD}
        and.b32 %r12, %r2, 16;
        setp.ne.u32 %p1, %r12, 0;
        @%p1 bra L;
        shfl.sync.bfly.b32 %r10, %r10, 5, 31, 65535;
        L: {STORE}""",
    "votes": f"""
        {LOAD}
        and.b32 %r12, %r10, 1;
        setp.ne.u32 %p1, %r12, 0;
        vote.sync.ballot.b32 %r13, %p1, -1;
        vote.sync.any.pred %p2, %p1, -1;
        vote.sync.all.pred %p3, %p1, -1;
        vote.sync.uni.pred %p4, %p1, -1;
        selp.u32 %r14, 1, 0, %p2;
        selp.u32 %r15, 2, 0, %p3;
        selp.u32 %r16, 4, 0, %p4;
        @%p1 vote.sync.ballot.b32 %r13, %p2, %r13;
        add.u32 %r10, %r13, %r14;
        add.u32 %r10, %r10, %r15;
        add.u32 %r10, %r10, %r16;
        {STORE}""",
    "redux, match, elect": f"""
        {LOAD}
        and.b32 %r12, %r10, 3;
        redux.sync.add.u32 %r13, %r10, -1;
        match.any.sync.b32 %r14, %r12, -1;
        match.all.sync.b32 %r15|%p1, %r1, -1;
        elect.sync %r16|%p2, -1;
        activemask.b32 %r17;
        @%p2 add.u32 %r13, %r13, 77;
        add.u32 %r10, %r13, %r14;
        add.u32 %r10, %r10, %r15;
        xor.b32 %r10, %r10, %r17;
        {STORE}""",
    "local memory": f"""
        .local .align 16 .b8 frame[64];
        {LOAD}
        mov.u32 %r11, frame;
        and.b32 %r12, %r10, 12;
        add.u32 %r11, %r11, %r12;
        st.local.u32 [%r11], %r10;
        st.local.v2.u32 [frame + 16], {{%r2, %r10}};
        ld.local.u32 %r13, [%r11];
        ld.local.u32 %r14, [frame + 20];
        add.u32 %r10, %r13, %r14;
        {STORE}""",
    "vectors and small types": """
        mul.wide.u32 %rd5, %r4, 8;
        add.u64 %rd5, %rd2, %rd5;
        ld.global.v2.u32 {%r11, %r12}, [%rd5];
        ld.global.s8 %r13, [%rd5 + 1];
        ld.global.u16 %rs1, [%rd5 + 2];
        ld.global.u64 %rd6, [%rd5];
        st.shared.u16 [%r5], %rs1;
        st.shared.u8 [%r5 + 3], %r12;
        st.shared.u8 [%r5 + 2], %r11;
        ld.shared.s16 %r14, [%r5 + 2];
        cvt.u32.u64 %r15, %rd6;
        add.u32 %r16, %r13, %r14;
        add.u64 %rd7, %rd1, %rd9;
        add.u64 %rd7, %rd7, %rd9;
        st.global.v2.u32 [%rd7], {%r15, %r16};""",
    "generic addresses": f"""
        {LOAD}
        cvta.global.u64 %rd5, %rd3;
        cvt.u64.u32 %rd6, %r5;
        cvta.shared.u64 %rd6, %rd6;
        st.u32 [%rd6], %r10;
        ld.u32 %r11, [%rd6];
        st.u32 [%rd5], %r11;""",
    "predicates": f"""
        {LOAD}
        setp.lt.u32 %p1|%p2, %r10, 2000;
        setp.eq.u32.or %p3, %r1, 3, %p1;
        setp.lt.s32 %p5|%p6, %r1, 100;
        not.pred %p4, %p3;
        selp.u32 %r11, 5, 9, %p2;
        set.lt.and.u32.u32 %r12, %r10, 1000, %p4;
        add.cc.u32 %r13, %r10, -5;
        addc.u32 %r14, %r11, 0;
        lop3.or.b32 %r15|%p5, %r10, %r11, %r12, 0x96, %p6;
        @!%p5 add.u32 %r14, %r14, 3;
        add.u32 %r10, %r14, %r12;
        add.u32 %r10, %r10, %r15;
        {STORE}""",
    "what all CTAs read": f"""
        ld.global.u32 %r10, [%rd2 + 64];
        ld.global.u32 %r11, [%rd4 + 16];
        add.u32 %r10, %r10, %r11;
        {STORE}""",
    "one thread stores": f"""
        {LOAD}
        st.shared.u32 [%r5], %r10;
        bar.sync 0;
        setp.ne.u32 %p1, %r2, 0;
        @%p1 ret;
        {OTHER}
        {STORE}""",
    "fences": f"{LOAD} membar.gl; fence.acq_rel.gpu; bar.warp.sync -1; {STORE}",
    "floats": f"""
        {LOAD}
        cvt.rn.f32.u32 %r11, %r10;
        fma.rn.f32 %r12, %r11, 0f3F9D70A4, 0f40490FDB;
        sqrt.rn.f32 %r13, %r12;
        cvt.rn.f16.f32 %rs1, %r13;
        cvt.f32.f16 %r14, %rs1;
        cvt.rzi.u32.f32 %r10, %r14;
        {STORE}""",
}
ALIKE["copies of threads"] = f"""
    cp.async.ca.shared.global [%r5], [%rd4], 4;
    setp.lt.u32 %p1, %r2, 40;
    selp.u32 %r11, 4, 0, %p1;
    add.u32 %r12, %r5, 256;
    cp.async.ca.shared.global [%r12], [%rd4 + 4], 4, %r11;
    cp.async.commit_group;
    cp.async.wait_group 0;
    bar.sync 0;
    {OTHER}
    ld.shared.u32 %r13, [%r12];
    add.u32 %r10, %r10, %r13;
    {STORE}"""
ALIKE["matrices"] = f"""
    {LOAD}
    st.shared.u32 [%r5], %r10;
    bar.sync 0;
    and.b32 %r11, %r2, 15;
    shl.b32 %r11, %r11, 4;
    add.u32 %r11, %r11, %r3;
    ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{%r12, %r13}}, [%r11];
    movmatrix.sync.aligned.m8n8.trans.b16 %r14, %r12;
    mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {{%r20, %r21, %r22, %r23}}, {{%r12, %r13}},
        {{%r14}}, {{%r1, %r2, %r1, %r2}};
    add.u32 %r10, %r20, %r23;
    {STORE}"""
ALIKE["parameters by the lane"] = f"""
    and.b32 %r11, %r2, 1;
    shl.b32 %r11, %r11, 2;
    mov.u32 %r12, out;
    add.u32 %r12, %r12, %r11;
    ld.param.u32 %r10, [%r12];
    and.b32 %r10, %r10, 0;
    add.u32 %r10, %r10, %r4;
    {STORE}"""
ALIKE["in place"] = """
    ld.global.u32 %r10, [%rd3];
    ld.global.u32 %r11, [%rd4];
    add.u32 %r10, %r10, %r11;
    st.global.u32 [%rd3], %r10;
    ld.global.u32 %r12, [%rd3];
    mad.lo.u32 %r10, %r12, 3, %r1;
    st.global.u32 [%rd3], %r10;"""
ALIKE["in place, and what all CTAs read"] = f"""
    mul.wide.u32 %rd5, %r2, 4;
    add.u64 %rd5, %rd2, %rd5;
    ld.global.u32 %r10, [%rd5];
    st.global.u32 [%rd4 + {4 * CTAS * THREADS}], %r10;
    {STORE}"""
ALIKE["in place, by another warp"] = """
    ld.global.u32 %r10, [%rd4];
    xor.b32 %r11, %r4, 32;
    mul.wide.u32 %rd5, %r11, 4;
    add.u64 %rd5, %rd2, %rd5;
    bar.sync 0;
    st.global.u32 [%rd5], %r10;
    bar.sync 0;
    ld.global.u32 %r10, [%rd4];
    add.u32 %r10, %r10, %r1;
    st.global.u32 [%rd3], %r10;"""
ALIKE["a place stored to twice"] = f"""
    {LOAD}
    {STORE}
    add.u32 %r10, %r10, 1;
    {STORE}
    add.u32 %r10, %r10, 1;
    {STORE}"""
# Data decide which lanes do what, and where: CTAs go ways of their own.
APART = {
    "stores under data": f"""
        {LOAD}
        st.shared.u32 [%r5], %r10;
        bar.sync 0;
        xor.b32 %r11, %r5, 128;
        ld.shared.u32 %r12, [%r11];
        bar.sync 0;
        setp.gt.u32 %p1, %r12, %r10;
        @%p1 bra L;
        st.shared.u32 [%r5], %r12;
        L: bar.sync 0;
        {OTHER}
        {STORE}""",
    "an exchange in a warp": f"""
        {LOAD}
        st.shared.u32 [%r5], %r10;
        bar.warp.sync -1;
        xor.b32 %r11, %r5, 4;
        ld.shared.u32 %r12, [%r11];
        bar.warp.sync -1;
        setp.gt.u32 %p1, %r12, %r10;
        @%p1 st.shared.u32 [%r11], %r10;
        bar.warp.sync -1;
        ld.shared.u32 %r10, [%r5];
        {STORE}""",
    "places by data": f"""
        {LOAD}
        shl.b32 %r11, %r1, 2;
        xor.b32 %r11, %r11, %r2;
        and.b32 %r11, %r11, 63;
        shl.b32 %r11, %r11, 2;
        add.u32 %r11, %r11, %r3;
        st.shared.u32 [%r11], %r10;
        bar.sync 0;
        {OTHER}
        {STORE}""",
    "loops as long as data say": f"""
        {LOAD}
        st.shared.u32 [%r5], %r10;
        and.b32 %r12, %r10, 7;
        mov.u32 %r13, 0;
        L: setp.ge.u32 %p1, %r13, %r12;
        @%p1 bra M;
        ld.shared.u32 %r14, [%r5];
        add.u32 %r14, %r14, %r13;
        st.shared.u32 [%r5], %r14;
        add.u32 %r13, %r13, 1;
        bra L;
        M: bar.sync 0;
        {OTHER}
        {STORE}""",
    "in place, where data say": """
        ld.global.u32 %r10, [%rd4];
        and.b32 %r11, %r10, 3;
        setp.eq.u32 %p1, %r11, %r1;
        @%p1 bra L;
        mul.lo.u32 %r10, %r10, 3;
        st.global.u32 [%rd4], %r10;
        L: bar.sync 0;
        xor.b32 %r11, %r4, 32;
        mul.wide.u32 %rd5, %r11, 4;
        add.u64 %rd5, %rd2, %rd5;
        ld.global.u32 %r12, [%rd5];
        st.global.u32 [%rd3], %r12;""",
    "some lanes of some CTAs": f"""
        {LOAD}
        and.b32 %r11, %r10, 15;
        setp.lt.u32 %p1, %r11, %r1;
        @%p1 ld.global.u32 %r10, [%rd4 + 4];
        @%p1 st.global.u32 [%rd3], %r10;""",
    "one lane of some CTAs": f"""
        {LOAD}
        and.b32 %r11, %r10, 15;
        setp.lt.u32 %p1, %r11, %r1;
        st.shared.u32 [%r5], %r10;
        bar.sync 0;
        @%p1 ld.shared.u32 %r10, [%r3 + 20];
        @%p1 st.global.u32 [%rd3], %r10;""",
    "small types": f"""
        {LOAD}
        add.u32 %r11, %r2, %r3;
        st.shared.u8 [%r11], %r10;
        bar.sync 0;
        setp.gt.u32 %p1, %r10, 2000;
        @%p1 st.shared.u8 [%r11], %r1;
        bar.sync 0;
        xor.b32 %r11, %r11, 32;
        ld.shared.u8 %r10, [%r11];
        {STORE}""",
    "lanes that leave": ALIKE.pop("lanes that leave"),
}
