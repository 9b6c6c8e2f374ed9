/* Vector types for the CPU operators: one source for AVX-512, AVX2 and 128-bit machines.
 *
 * GCC vector extensions carry the arithmetic; `vf` holds RL_LANES floats. Products and sums contract to
 * fused multiply-adds where the machine has them, in the same way for every number of rows.
 */
#ifndef RL_VEC_H
#define RL_VEC_H

#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef RL_LANES
#if defined(__AVX512F__)
#define RL_LANES 16
#elif defined(__AVX2__)
#define RL_LANES 8
#else
#define RL_LANES 4
#endif
#endif

#define RL_PANEL 16                    /* output features of one packed panel */
#define RL_NV (RL_PANEL / RL_LANES)    /* vectors across one panel */
#define RL_INLINE static inline __attribute__((always_inline))
#define RL_UNROLL _Pragma("GCC unroll 16")
#define RL_EXPORT __attribute__((visibility("default")))

typedef float vf __attribute__((vector_size(RL_LANES * 4)));
typedef float vf_u __attribute__((vector_size(RL_LANES * 4), aligned(4), may_alias));
typedef uint32_t vu __attribute__((vector_size(RL_LANES * 4)));
typedef uint32_t vu_u __attribute__((vector_size(RL_LANES * 4), aligned(2), may_alias));
typedef int32_t vi __attribute__((vector_size(RL_LANES * 4)));
typedef uint16_t vh __attribute__((vector_size(RL_LANES * 2)));
typedef uint16_t vh_u __attribute__((vector_size(RL_LANES * 2), aligned(2), may_alias));

RL_INLINE vf vf_load(const float *p) { return *(const vf_u *)p; }
RL_INLINE void vf_store(float *p, vf v) { *(vf_u *)p = v; }
RL_INLINE vf vf_splat(float s) { return s - (vf){0}; }

/* acc += a * b. Spelled out where GCC would pick a form that needs a move and then run out of registers. */
RL_INLINE void vf_fma(vf *acc, vf a, vf b) {
#if defined(__FMA__) && RL_LANES == 8
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(*acc) : "x"(a), "x"(b));
#else
    *acc += a * b;
#endif
}

/* RL_LANES consecutive bf16 values, widened. */
RL_INLINE vf vf_load_bf16(const uint16_t *p) {
    vu wide = __builtin_convertvector(*(const vh_u *)p, vu) << 16;
    return (vf)wide;
}

RL_INLINE float bf16_to_float(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Round to nearest, ties to even; a NaN stays a (quiet) NaN. */
RL_INLINE uint16_t float_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

RL_INLINE void vf_store_bf16(uint16_t *p, vf v) {
    vu u = (vu)v;
    vu rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    vu nan = (vu)((u & 0x7fffffffu) > 0x7f800000u);
    rounded = (nan & 0x7fc0u) | (~nan & rounded);
    *(vh_u *)p = __builtin_convertvector(rounded, vh);
}

/* Sum of the lanes, by halves: the same tree for every caller. */
RL_INLINE float vf_sum(vf v) {
    float lanes[RL_LANES];
    vf_store(lanes, v);
    RL_UNROLL for (int width = RL_LANES / 2; width > 0; width /= 2)
        RL_UNROLL for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
    return lanes[0];
}

RL_INLINE vf vf_max(vf a, vf b) {
    vi greater = a > b;
    return (vf)((greater & (vi)a) | (~greater & (vi)b));
}

/* 2**x, relative error about 1e-7; exactly 0 below 2**-126 (so for minus infinity), clamped at 2**127. */
RL_INLINE vf vf_exp2(vf x) {
    vi kept = x >= vf_splat(-126.0f);
    vi small = x < vf_splat(127.0f);
    vf top = vf_splat(127.0f);
    x = (vf)((small & (vi)x) | (~small & (vi)top));
    x = (vf)(kept & (vi)x);
    vf magic = vf_splat(12582912.0f); /* 1.5 * 2**23: adding it rounds to an integer */
    vf shifted = x + magic;
    vf f = x - (shifted - magic);
    vf p = vf_splat(1.5403530e-4f);
    p = p * f + 1.3333558e-3f;
    p = p * f + 9.6181291e-3f;
    p = p * f + 5.5504109e-2f;
    p = p * f + 2.4022651e-1f;
    p = p * f + 6.9314718e-1f;
    p = p * f + 1.0f;
    vi exponent = ((vi)shifted - (vi)magic) << 23;
    return (vf)(kept & (vi)((vi)p + exponent));
}

#define RL_LOG2E 1.44269504088896340736f

/* Runs body(job, task) for every task, handed out one by one: a slow thread holds up no other. */
RL_INLINE void parallel_tasks(int threads, long tasks, void (*body)(const void *job, long task), const void *job) {
    if (threads <= 1 || tasks <= 1) {
        for (long task = 0; task < tasks; task++) body(job, task);
        return;
    }
    atomic_long next = 0;
#pragma omp parallel num_threads(threads)
    for (long task; (task = atomic_fetch_add(&next, 1)) < tasks;) body(job, task);
}

#endif
