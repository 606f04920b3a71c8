"""CTAs abreast: reports, counters and outputs are those of CTAs that run one after the other."""

from __future__ import annotations

import pytest
import torch

from b200.chip.abreast import forms
from b200.chip.abreast.order import SideBySide, how_many
from b200.chip.gpu import Gpu
from b200.chip.machine import Machine
from b200.effects import Stores
from b200.errors import Fault
from tests.b200.chip.ctas_abreast import (
    CTAS,
    HEAD,
    LOAD,
    OTHER,
    STORE,
    THREADS,
    compare,
    outcome,
)
from tests.b200.ptx_support import kernel, run

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
# A crime that CTA 5 alone commits, as data have it: `given` of its thread 9 is odd, say.
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

SOUND = ALIKE | APART
# no bugs, but no CTA may be carried out beside another, or none is
RIGHT = ("a flag between CTAs", "bytes of other lanes")


@pytest.mark.parametrize("check", [False, True], ids=["unchecked", "checked"])
@pytest.mark.parametrize("name", SOUND)
def test_they_show_what_one_after_the_other_shows(name, check):
    found = compare(SOUND[name], check)
    assert found.order.ran == CTAS - 1, found.order.dropped
    assert found.said == ""


@pytest.mark.parametrize("check", [False, True], ids=["unchecked", "checked"])
@pytest.mark.parametrize("name", BUGS | BUGS_APART)
def test_reports_of_bugs_are_the_same(name, check):
    found = compare((BUGS | BUGS_APART)[name], check)
    assert not check or bool(found.said) == (name not in RIGHT)


@pytest.mark.parametrize("cta", [1, 5, CTAS - 1])
def test_one_that_differs_late_is_set_apart(cta):
    """It leaves out a barrier at the end of a loop. The CTAs before and behind it run abreast."""
    body = f"""
        mov.u32 %r12, 0;
        setp.eq.u32 %p1, %r1, {cta};
        L: {LOAD} st.shared.u32 [%r5], %r10; bar.sync 0; {OTHER} {STORE}
        add.u32 %r12, %r12, 1;
        setp.eq.u32.and %p3, %r12, 8, %p1;
        @!%p3 bar.sync 0;
        @%p3 st.shared.u32 [%r5], %r12;
        setp.lt.u32 %p2, %r12, 8;
        @%p2 bra L;"""
    found = compare(body, check=True)
    assert f"CTA ({cta}, 0, 0)" in found.said
    assert found.order.ran == CTAS - 2


def test_later_clusters_are_held_against_those_that_ran_abreast():
    """Of 80 CTAs the first 71 run in two runs, and one of the others writes what they have read and
    stored.
    """
    body = """
        ld.global.u32 %r10, [%rd2 + 4];
        ld.global.u32 %r11, [%rd2 + 8];
        setp.eq.u32 %p1, %r1, 78;
        @%p1 st.global.u32 [%rd2 + 8], %r10;
        {}
        st.global.u32 [%rd3], %r10;"""
    many = "@%p1 st.global.u32 [%rd1 + 512], %r11;"
    found = compare(body.format(many), check=True, ctas=80)
    assert found.order.ran and "CTA (78, 0, 0)" in found.said
    assert "CTA (78, 0, 0)" in compare(body.format(""), check=True, ctas=80).said


@pytest.mark.parametrize("place", ["%rd2 + 16", "%rd3 + -1280"], ids=["read", "stored"])
def test_and_against_those_that_did_what_data_say(place):
    """Some lanes of some CTAs read and store; CTA 78 stores at one of their places."""
    body = f"""
        ld.global.u32 %r10, [%rd4];
        and.b32 %r11, %r10, 7;
        setp.lt.u32 %p1, %r11, %r1;
        @!%p1 bra L;
        ld.global.u32 %r10, [%rd2 + 16];
        ld.global.u32 %r12, [%rd4 + 4];
        st.global.u32 [%rd3], %r12;
        L: setp.eq.u32 %p1, %r1, 78;
        setp.eq.u32.and %p1, %r2, 0, %p1;
        @%p1 st.global.u32 [{place}], %r2;"""
    found = compare(body, check=True, ctas=80)
    assert found.order.ran and "CTA (78, 0, 0)" in found.said


def test_a_launch_is_cut_such_that_few_are_left_over():
    assert [how_many(left, 64) for left in (1, 2, 15, 64, 130, 255)] == [0, 2, 15, 64, 64, 51]


def test_it_has_to_pay(monkeypatch):
    short, most = ALIKE["shared memory"], SideBySide(64)
    assert most.pays > 0
    gpu = Gpu()
    gpu.machine = Machine(gpu.memory, most)
    text = kernel(HEAD + short, [".u64 out", ".u64 given"], reqntid=THREADS)
    out, given = torch.zeros(CTAS * THREADS).int(), torch.zeros(CTAS * THREADS).int()
    run(text, out, given, grid=(CTAS, 1, 1), block=(THREADS, 1, 1), smem=1024, gpu=gpu)
    assert most.ran == 0
    monkeypatch.setenv("B200_ABREAST", "0")
    assert SideBySide().most == 0
    monkeypatch.setenv("B200_ABREAST", "16:7")
    assert (SideBySide().most, SideBySide().pays) == (16, 7)


@pytest.mark.parametrize("error", [Fault("planted"), ValueError("planted")], ids=["fault", "ours"])
def test_only_faults_of_the_program_are_left_to_ctas_one_by_one(error, monkeypatch):
    """A failure of the emulator itself is told: it says nothing of the program."""

    def fails(op, seen):
        def run(*_):
            raise error

        return run

    body = ALIKE["what all CTAs read"]
    monkeypatch.setitem(forms.FORMS, Stores, fails)
    found = outcome(body, 64, check=False)
    assert found.order.ran == 0
    if isinstance(error, Fault):
        assert found.shows() == outcome(body, 0, check=False).shows()
    else:
        assert "the emulator itself failed" in found.said and "ValueError: planted" in found.said
