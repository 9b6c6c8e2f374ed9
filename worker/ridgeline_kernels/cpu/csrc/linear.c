/* y[rows, out] = x[rows, in] @ w[out, in]^T + bias, on weights packed into panels of 16 outputs.
 *
 * Rows are cut into blocks, and blocks into tiles of at most RL_TILE_ROWS. Before the product x is copied tile by
 * tile with k outermost, [depth][rows of the tile], so that the core reads one short ascending stream. Where the
 * machine has bf16 dot products and the weights are bf16, the copy rounds x to bf16, two k to a word.
 */
#include "micro.h"

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
    int is_bf16;
    void *packed; /* x in tiles, or NULL where x itself is one: a single row */
    long runs, run_panels, blocks; /* how the outputs are cut into tasks */
} linear_job;

/* One block of rows as tiles: tile t holds the rows [tile_end(t - 1), tile_end(t)) of the block. */
typedef struct {
    const void *x;
    long row0, rows, count;
} row_tiles;

RL_INLINE long tile_end(const row_tiles *tiles, long t) { return tiles->rows * (t + 1) / tiles->count; }

RL_INLINE int uses_dot(const linear_job *job) { return RL_BF16_DOT && job->is_bf16; }

static row_tiles tiles_of(const linear_job *job, long block) {
    const long r0 = job->rows * block / job->blocks, rows = job->rows * (block + 1) / job->blocks - r0;
    const void *x = job->x;
    if (job->packed) x = (char *)job->packed + r0 * job->depth * (uses_dot(job) ? 2 : 4);
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
            if (uses_dot(job))
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
    if (job->is_bf16) block_bf16(job, &tiles, p0, p1);
    else block_f32(job, &tiles, p0, p1);
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
    if (job->rows > 1 || job->depth != job->in || uses_dot(job)) {
        job->packed = malloc((size_t)(job->rows * job->depth) * sizeof(float));
        if (!job->packed) return 2;
        parallel_tasks(job->rows > SERIAL_PACK ? threads : 1, job->blocks, pack_task, job);
    }
    parallel_tasks(threads, job->runs * job->blocks, product_task, job);
    free(job->packed);
    return 0;
}

/* x: fp32 [rows, in] with row stride ldx; w: packed, of depth `depth` >= in; bias: padded to whole panels or NULL.
 * Returns 0, or 2 if there is no memory for the scratch copy of x. */
RL_EXPORT int rl_linear(const float *x, long ldx, const void *w, const float *bias, float *y, long ldy, long rows,
                        long in, long depth, long out, int is_bf16, int threads) {
    for (long r = 0; r < rows; r += PASS_ROWS) {
        linear_job job = {.x = x + r * ldx, .ldx = ldx, .rows = rows - r < PASS_ROWS ? rows - r : PASS_ROWS,
                          .in = in, .depth = depth, .out = out, .w = w, .bias = bias, .y = y + r * ldy,
                          .ldy = ldy, .is_bf16 = is_bf16};
        const int fault = run(&job, threads);
        if (fault) return fault;
    }
    return 0;
}

/* Whether activations are rounded to bf16 against bf16 weights. */
RL_EXPORT int rl_rounds_activations(void) { return RL_BF16_DOT; }
