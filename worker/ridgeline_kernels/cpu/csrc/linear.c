/* y[rows, out] = x[rows, in] @ w[out, in]^T + bias, on weights packed into panels of 16 outputs.
 *
 * Rows are cut into blocks, and blocks into tiles of at most RL_TILE_ROWS. Before the product x is copied tile by
 * tile with k outermost, [depth][rows of the tile], so that the core reads one short ascending stream. Where the
 * machine has bf16 dot products and the weights are bf16, the copy rounds x to bf16, two k to a word; for weights of
 * 8 or 4 bits it rounds x to 16 bits a group (quant.h).
 */
#include "quant.h"
#include "operators.h"

typedef enum { RL_FP32, RL_BF16, RL_INT8, RL_INT4 } rl_format;

#define DEPTH_BLOCK 768 /* k per pass when several row tiles reuse a panel: near enough, and few passes over y */
#define ROW_BLOCK 48    /* rows per task: with one pass of columns they stay in L2 */
#define PASS_ROWS 1024  /* rows copied at a time: bounds the scratch memory */
#define SERIAL_PACK 48  /* rows up to which the caller's thread copies x alone */

typedef struct {
    const float *x;
    long ldx, rows, in, depth, out;
    const void *w;
    const float *bias; /* padded to whole panels, or NULL */
    float *y;
    long ldy;
    rl_format format;
    long group; /* k that share a scale, of int8 and int4; else 0 */
    void *packed; /* x in tiles, or NULL where x itself is one: a single row */
    long runs, run_panels, blocks; /* how the outputs are cut into tasks */
} linear_job;

/* One block of rows as tiles: tile t holds the rows [tile_end(t - 1), tile_end(t)) of the block. */
typedef struct {
    const void *x;
    long row0, rows, count;
} row_tiles;

RL_INLINE long tile_end(const row_tiles *tiles, long t) { return tiles->rows * (t + 1) / tiles->count; }

RL_INLINE int uses_dot(const linear_job *job) { return RL_BF16_DOT && job->format == RL_BF16; }

/* Bytes that a row takes in the copy of x. */
RL_INLINE long row_bytes(const linear_job *job) {
    return job->group ? job->depth * 2 + job->depth / job->group * 8 : job->depth * (uses_dot(job) ? 2 : 4);
}

static row_tiles tiles_of(const linear_job *job, long block) {
    const long r0 = job->rows * block / job->blocks, rows = job->rows * (block + 1) / job->blocks - r0;
    const void *x = job->x;
    if (job->packed) x = (char *)job->packed + r0 * row_bytes(job);
    return (row_tiles){.x = x, .row0 = r0, .rows = rows, .count = (rows + RL_TILE_ROWS - 1) / RL_TILE_ROWS};
}

/* How many panels one tile of `rows` rows takes at once. */
RL_INLINE int panels_at_once(long rows) {
#if RL_LANES == 16
    return rows == 1 ? 4 : 2;
#else
    return rows == 1 ? 4 : rows <= 3 ? 2 : 1;
#endif
}

#define WEIGHT float
#define ACTIVATION float
#define K_PER_WORD 1
#define MICRO(ROWS, PANELS) micro_f32(ROWS, PANELS, 1, x, 1, ROWS, w, RL_PANEL, stride, depth, start, bias, c, ldc)
#define NAME(part) part##_f32
#include "tile.inc"

#define WEIGHT uint16_t
#if RL_BF16_DOT
#define ACTIVATION uint32_t
#define K_PER_WORD 2
#define MICRO(ROWS, PANELS) micro_dot(ROWS, PANELS, x, w, stride, depth, start, bias, c, ldc)
#else
#define ACTIVATION float
#define K_PER_WORD 1
#define MICRO(ROWS, PANELS) micro_bf16(ROWS, PANELS, x, 1, ROWS, w, stride, depth, start, bias, c, ldc)
#endif
#define NAME(part) part##_bf16
#include "tile.inc"

#define QUANT_FEW_ROWS 4 /* rows up to which weights are unpacked in registers */

static __attribute__((noinline)) void quant_tile(int rows, int panels, int bits, int has_offsets, const uint32_t *x,
                                                 const float *x_scales, const char *w, long stride, long depth,
                                                 long group, rl_start start, const float *bias, float *c, long ldc) {
#define TILE(ROWS, PANELS, BITS) \
    micro_quant(ROWS, PANELS, BITS, (BITS) == 16 ? has_offsets : (BITS) == 4, x, x_scales, w, stride, depth, group, start, bias, c, ldc)
#define FEW(BITS)                          \
    switch (rows) {                        \
    case 1:                                \
        if (panels == 2) TILE(1, 2, BITS); \
        else TILE(1, 1, BITS);             \
        break;                             \
    case 2: TILE(2, 1, BITS); break;       \
    case 3: TILE(3, 1, BITS); break;       \
    case 4: TILE(4, 1, BITS); break;       \
    }
    if (bits == 8) {
        FEW(8)
        return;
    }
    if (bits == 4) {
        FEW(4)
        return;
    }
    switch (rows) {
    case 1: TILE(1, 1, 16); break;
    case 2: TILE(2, 1, 16); break;
    case 3: TILE(3, 1, 16); break;
    case 4: TILE(4, 1, 16); break;
    case 5: TILE(5, 1, 16); break;
    case 6: TILE(6, 1, 16); break;
#if RL_LANES == 16
    case 7: TILE(7, 1, 16); break;
    case 8: TILE(8, 1, 16); break;
    case 9: TILE(9, 1, 16); break;
    case 10: TILE(10, 1, 16); break;
    case 11: TILE(11, 1, 16); break;
    case 12: TILE(12, 1, 16); break;
#endif
    }
#undef FEW
#undef TILE
}

/* The tiles of a block of rows against k [k0, k0 + depth) of `taken` panels from p on, unpacked or as they are. */
static void quant_panels(const linear_job *job, const row_tiles *tiles, long p, int taken, int bits, const char *w,
                         long stride, long k0, long depth) {
    const long columns = job->out - p * RL_PANEL, group = job->group;
    const float *bias = job->bias ? job->bias + p * RL_PANEL : NULL;
    const rl_start start = k0 ? RL_FROM_OUT : bias ? RL_FROM_BIAS : RL_FROM_ZERO;
    for (long t = 0, r0 = 0, r1; t < tiles->count; t++, r0 = r1) {
        r1 = tile_end(tiles, t);
        const long n = r1 - r0;
        const char *tile = (const char *)tiles->x + r0 * row_bytes(job);
        const uint32_t *x = (const uint32_t *)tile + k0 / 2 * n;
        const float *x_scales = (const float *)(tile + n * job->depth * 2) + k0 / group * 2 * n;
        float *c = job->y + (tiles->row0 + r0) * job->ldy + p * RL_PANEL;
        if (columns >= RL_PANEL) {
            quant_tile((int)n, taken, bits, job->format == RL_INT4, x, x_scales, w, stride, depth, group, start, bias, c, job->ldy);
            continue;
        }
        float edge[RL_TILE_ROWS * RL_PANEL];
        const size_t bytes = (size_t)columns * sizeof(float);
        for (long r = 0; r < n; r++) memcpy(edge + r * RL_PANEL, c + r * job->ldy, bytes);
        quant_tile((int)n, 1, bits, job->format == RL_INT4, x, x_scales, w, stride, depth, group, start, bias, edge, RL_PANEL);
        for (long r = 0; r < n; r++) memcpy(c + r * job->ldy, edge + r * RL_PANEL, bytes);
    }
}

static void block_quant(const linear_job *job, const row_tiles *tiles, long p0, long p1) {
    const int bits = job->format == RL_INT8 ? 8 : 4;
    const long group_bytes = quant_group_bytes(bits, bits == 4, job->group), stride = job->depth / job->group * group_bytes;
    const char *w = (const char *)job->w + p0 * stride;
    if (tiles->rows <= QUANT_FEW_ROWS) {
        const long whole = job->out / RL_PANEL < p1 ? job->out / RL_PANEL : p1;
        for (long p = p0, taken; p < p1; p += taken, w += taken * stride) {
            taken = tiles->rows == 1 && p + 2 <= whole ? 2 : 1;
            quant_panels(job, tiles, p, (int)taken, bits, w, stride, 0, job->depth);
        }
        return;
    }
    char wide[QUANT_PIECE / 32 * (QUANT_HEAD(1) + 32 * RL_PANEL * 2)] __attribute__((aligned(64)));
    for (long p = p0; p < p1; p++, w += stride)
        for (long k0 = 0; k0 < job->depth; k0 += QUANT_PIECE) {
            const long depth = job->depth - k0 < QUANT_PIECE ? job->depth - k0 : QUANT_PIECE;
            const char *piece = w + k0 / job->group * group_bytes;
            if (bits == 8) quant_unpack(8, 0, piece, depth, job->group, wide);
            else quant_unpack(4, 1, piece, depth, job->group, wide);
            quant_panels(job, tiles, p, 1, 16, wide, 0, k0, depth);
        }
}

/* Copies one row into column r of a tile of n rows; k past the input features is zero. */
static void pack_row(const linear_job *job, const float *from, float *to, long r, long n) {
    for (long k = 0; k < job->in; k++) to[k * n + r] = from[k];
    for (long k = job->in; k < job->depth; k++) to[k * n + r] = 0.0f;
}

static void pack_row_pairs(const linear_job *job, const float *from, uint32_t *to, long r, long n) {
    for (long k = 0; k + 1 < job->in; k += 2)
        to[k / 2 * n + r] = float_to_bf16(from[k]) | (uint32_t)float_to_bf16(from[k + 1]) << 16;
    if (job->in & 1) to[job->in / 2 * n + r] = float_to_bf16(from[job->in - 1]);
}

static void pack_task(const void *argument, long block) {
    const linear_job *job = argument;
    const row_tiles tiles = tiles_of(job, block);
    for (long t = 0, r0 = 0, r1; t < tiles.count; t++, r0 = r1) {
        r1 = tile_end(&tiles, t);
        for (long r = r0; r < r1; r++) {
            const float *from = job->x + (tiles.row0 + r) * job->ldx;
            if (job->group) {
                char *tile = (char *)tiles.x + r0 * row_bytes(job);
                quant_row(from, job->in, job->depth, job->group, (uint32_t *)tile,
                          (float *)(tile + (r1 - r0) * job->depth * 2), r - r0, r1 - r0);
            } else if (uses_dot(job))
                pack_row_pairs(job, from, (uint32_t *)tiles.x + r0 * job->depth / 2, r - r0, r1 - r0);
            else pack_row(job, from, (float *)tiles.x + r0 * job->depth, r - r0, r1 - r0);
        }
    }
}

static void product_task(const void *argument, long task) {
    const linear_job *job = argument;
    const long panels = (job->out + RL_PANEL - 1) / RL_PANEL;
    const long p0 = task % job->runs * job->run_panels;
    const long p1 = p0 + job->run_panels < panels ? p0 + job->run_panels : panels;
    const row_tiles tiles = tiles_of(job, task / job->runs);
    if (job->format == RL_FP32) block_f32(job, &tiles, p0, p1);
    else if (job->format == RL_BF16) block_bf16(job, &tiles, p0, p1);
    else block_quant(job, &tiles, p0, p1);
}

/* Panels per task: about four tasks a thread and block of rows, whole groups of four panels each. */
static long task_panels(long panels, int threads) {
    const long share = (panels + threads * 4 - 1) / (threads * 4);
    return (share + 3) / 4 * 4;
}

static int run(linear_job *job, int threads) {
    const long panels = (job->out + RL_PANEL - 1) / RL_PANEL;
    job->run_panels = task_panels(panels, threads);
    job->runs = (panels + job->run_panels - 1) / job->run_panels;
    job->blocks = (job->rows + ROW_BLOCK - 1) / ROW_BLOCK;
    job->packed = NULL;
    if (job->rows > 1 || job->depth != job->in || uses_dot(job) || job->group) {
        job->packed = malloc((size_t)(job->rows * row_bytes(job)));
        if (!job->packed) return 2;
        parallel_tasks(job->rows > SERIAL_PACK ? threads : 1, job->blocks, pack_task, job);
    }
    parallel_tasks(threads, job->runs * job->blocks, product_task, job);
    free(job->packed);
    return 0;
}

/* x: fp32 [rows, in] with row stride ldx; w: packed in `format`, of depth `depth` >= in; bias: padded to whole panels
 * or NULL; group: 32, 64 or 128 k that share a scale, for int8 and int4; else 0.
 * Returns 0, or 2 if there is no memory for the scratch copy of x. */
RL_EXPORT int rl_linear(const float *x, long ldx, const void *w, const float *bias, float *y, long ldy, long rows,
                        long in, long depth, long out, int format, long group, int threads) {
    for (long r = 0; r < rows; r += PASS_ROWS) {
        linear_job job = {.x = x + r * ldx, .ldx = ldx, .rows = rows - r < PASS_ROWS ? rows - r : PASS_ROWS,
                          .in = in, .depth = depth, .out = out, .w = w, .bias = bias, .y = y + r * ldy,
                          .ldy = ldy, .format = (rl_format)format, .group = group};
        const int fault = run(&job, threads);
        if (fault) return fault;
    }
    return 0;
}

/* Whether activations are rounded to bf16 against bf16 weights. */
RL_EXPORT int rl_rounds_activations(void) { return RL_BF16_DOT; }

/* Rows `ids` of a weight packed in fp32 or bf16, widened: to [count, in]. Returns 1 for an id that is no output. */
RL_EXPORT int rl_weight_rows(const void *w, int format, long in, long depth, long out, const int64_t *ids, long count,
                             float *to) {
    for (long i = 0; i < count; i++, to += in) {
        if (ids[i] < 0 || ids[i] >= out) return 1;
        const long panel = ids[i] / RL_PANEL, lane = ids[i] % RL_PANEL;
        if (format == RL_FP32) {
            const float *from = (const float *)w + panel * depth * RL_PANEL + lane;
            for (long k = 0; k < in; k++) to[k] = from[k * RL_PANEL];
            continue;
        }
        const uint16_t *from = (const uint16_t *)w + panel * depth * RL_PANEL + lane * 2;
        for (long k = 0; k < in; k++) {
            const uint32_t bits = (uint32_t)from[k / 2 * 2 * RL_PANEL + k % 2] << 16;
            memcpy(to + k, &bits, sizeof bits);
        }
    }
    return 0;
}
