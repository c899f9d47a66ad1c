/* What of the small-model forward torch does in many passes over memory, in one each. float32; see native.py.
 *
 * Letters: N new tokens of all sequences, one behind the other; B sequences; W = (heads + 2 * kv) * dim.
 * Keys lie in tiles [block][kv head][dim][16], values in [block][kv head][16][padded dim]: sixteen keys at once are one
 * vector, and so are sixteen entries of a value.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16
#define ROWS 12

typedef float vec __attribute__((vector_size(64)));
typedef float vec_u __attribute__((vector_size(64), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(64)));
#define INLINE static inline __attribute__((always_inline))

INLINE vec splat(float x) { return x - (vec){0}; }

/* exp(x), relative error below 3e-7; 0 below -87. */
INLINE vec vexp(vec x) {
    const ivec keep = x > splat(-87.0f);
    vec top = splat(88.0f);
    x = (vec)(((ivec)x & (x < top)) | ((ivec)top & ~(x < top)));
    x = (vec)((ivec)x & keep);
    vec n = x * splat(1.44269504088896341f) + splat(12582912.0f);
    ivec whole = (ivec)n - (ivec)splat(12582912.0f);
    n = n - splat(12582912.0f);
    vec r = x - n * splat(0.693359375f);
    r = r + n * splat(2.12194440e-4f);
    vec p = splat(1.9875691500e-4f);
    p = p * r + splat(1.3981999507e-3f);
    p = p * r + splat(8.3334519073e-3f);
    p = p * r + splat(4.1665795894e-2f);
    p = p * r + splat(1.6666665459e-1f);
    p = p * r + splat(5.0000001201e-1f);
    p = p * r * r + r + splat(1.0f);
    p = (vec)((ivec)p + (whole << 23));
    return (vec)((ivec)p & keep);
}

INLINE float sum_lanes(vec x) {
    float s = 0;
    for (int i = 0; i < LANES; i++) s += x[i];
    return s;
}

INLINE float max_lanes(vec x) {
    float m = x[0];
    for (int i = 1; i < LANES; i++) m = x[i] > m ? x[i] : m;
    return m;
}

/* Rotate queries and keys of the new tokens of sequences first <= b < last in place; keys and values go to the pool. */
void ajet_store(float *qkv, float *pool_k, float *pool_v, const int32_t *tables, int64_t K, const int32_t *start,
                const int32_t *offset, const float *cos, const float *sin, int64_t first, int64_t last, int64_t heads,
                int64_t kv, int64_t dim, int64_t padded) {
    const int64_t W = (heads + 2 * kv) * dim, half = dim / 2;
    for (int64_t b = first; b < last; b++) {
        for (int64_t n = offset[b]; n < offset[b + 1]; n++) {
            const int64_t position = start[b] + (n - offset[b]);
            const int64_t block = tables[b * K + position / LANES], at = position % LANES;
            const float *c = cos + position * dim, *s = sin + position * dim;
            float *row = qkv + n * W;
            for (int64_t h = 0; h < heads + kv; h++, row += dim)
                for (int64_t d = 0; d < half; d++) {
                    const float x = row[d], y = row[d + half];
                    row[d] = x * c[d] - y * s[d];
                    row[d + half] = y * c[d] + x * s[d];
                }
            row -= kv * dim;
            for (int64_t h = 0; h < kv; h++, row += dim) {
                float *k = pool_k + (block * kv + h) * dim * LANES + at;
                for (int64_t d = 0; d < dim; d++) k[d * LANES] = row[d];
            }
            for (int64_t h = 0; h < kv; h++, row += dim)
                memcpy(pool_v + ((block * kv + h) * LANES + at) * padded, row, dim * sizeof(float));
        }
    }
}

/* R queries of one key head, each over its own number of keys. query is [dim][R], already scaled; score has room for
 * [blocks][R][16], so that every loop walks one pointer. Few rows take two blocks at once: the adders are never idle. */
INLINE void attend_rows(const int R, const float *query, float *const *out, const int64_t *keys, const float *pool_k,
                        const float *pool_v, const int32_t *table, int64_t kv, int64_t head, int64_t dim,
                        int64_t padded, float *score) {
    const int pair = R <= 6 ? 2 : 1;
    int64_t most = 0;
    for (int r = 0; r < R; r++) most = keys[r] > most ? keys[r] : most;
    const int64_t blocks = (most + LANES - 1) / LANES;
    vec top[R];
    for (int r = 0; r < R; r++) top[r] = splat(-INFINITY);
    for (int64_t k = 0; k < blocks; k += pair) {
        const float *tile = pool_k + (table[k] * kv + head) * dim * LANES;
        const float *next = pair == 2 && k + 1 < blocks ? pool_k + (table[k + 1] * kv + head) * dim * LANES : tile;
        vec acc[pair][R];
        for (int u = 0; u < pair; u++)
            for (int r = 0; r < R; r++) acc[u][r] = splat(0);
        for (int64_t d = 0; d < dim; d++) {
            const float *q = query + d * R;
            const vec key = *(const vec_u *)(tile + d * LANES);
            for (int r = 0; r < R; r++) acc[0][r] += key * q[r];
            if (pair == 2) {
                const vec other = *(const vec_u *)(next + d * LANES);
                for (int r = 0; r < R; r++) acc[pair - 1][r] += other * q[r];
            }
        }
        for (int u = 0; u < pair && k + u < blocks; u++)
            for (int r = 0; r < R; r++) {
                vec s = acc[u][r];
                int64_t seen = keys[r] - (k + u) * LANES;
                if (seen < LANES) {
                    const ivec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
                    const ivec in = lane < ((ivec){0} + (int32_t)(seen < 0 ? 0 : seen));
                    s = (vec)(((ivec)s & in) | ((ivec)splat(-INFINITY) & ~in));
                }
                const ivec more = s > top[r];
                top[r] = (vec)(((ivec)s & more) | ((ivec)top[r] & ~more));
                *(vec_u *)(score + ((k + u) * R + r) * LANES) = s;
            }
    }
    vec total[R];
    for (int r = 0; r < R; r++) {
        top[r] = splat(max_lanes(top[r]));
        total[r] = splat(0);
    }
    for (int64_t k = 0; k < blocks; k++)
        for (int r = 0; r < R; r++) {
            float *at = score + (k * R + r) * LANES;
            const vec e = vexp(*(vec_u *)at - top[r]);
            total[r] += e;
            *(vec_u *)at = e;
        }
    float inverse[R];
    for (int r = 0; r < R; r++) inverse[r] = 1.0f / sum_lanes(total[r]);
    for (int64_t part = 0; part < padded; part += 2 * LANES) {
        const int two = padded - part > LANES;
        vec low[R], high[R];
        for (int r = 0; r < R; r++) low[r] = high[r] = splat(0);
        for (int64_t k = 0; k < blocks; k++) {
            const float *v = pool_v + (table[k] * kv + head) * LANES * padded + part;
            const int64_t count = most - k * LANES < LANES ? most - k * LANES : LANES;
            const float *p = score + k * R * LANES;
            if (two)
                for (int64_t j = 0; j < count; j++, v += padded, p++) {
                    const vec a = *(const vec_u *)v, c = *(const vec_u *)(v + LANES);
                    for (int r = 0; r < R; r++) {
                        const vec by = splat(p[r * LANES]);
                        low[r] += a * by;
                        high[r] += c * by;
                    }
                }
            else
                for (int64_t j = 0; j < count; j++, v += padded, p++) {
                    const vec a = *(const vec_u *)v;
                    for (int r = 0; r < R; r++) low[r] += a * p[r * LANES];
                }
        }
        for (int r = 0; r < R; r++) {
            float both[2 * LANES];
            *(vec_u *)both = low[r] * inverse[r];
            *(vec_u *)(both + LANES) = high[r] * inverse[r];
            const int64_t count = dim - part < 2 * LANES ? dim - part : 2 * LANES;
            memcpy(out[r] + part, both, count * sizeof(float));
        }
    }
}

/* Attention of the new tokens (the last of each sequence only, where only_last) over all cached ones.
 * out is [N, heads * dim], or [B, heads * dim] where only_last. score: room for 12 rows of K blocks, and 12 * dim. */
void ajet_attend(const float *qkv, float *out, const float *pool_k, const float *pool_v, const int32_t *tables, int64_t K,
                 const int32_t *start, const int32_t *offset, int64_t first, int64_t last, int64_t heads, int64_t kv,
                 int64_t dim, int64_t padded, int64_t only_last, float *score) {
    const int64_t W = (heads + 2 * kv) * dim, share = heads / kv;
    const float scale = 1.0f / sqrtf((float)dim);
    for (int64_t b = first; b < last; b++)
        for (int64_t g = 0; g < kv; g++) {
            const int64_t from = only_last ? offset[b + 1] - 1 : offset[b];
            const int64_t rows = (offset[b + 1] - from) * share;
            for (int64_t r0 = 0; r0 < rows; r0 += ROWS) {
                const int R = rows - r0 < ROWS ? (int)(rows - r0) : ROWS;
                float *query = score + ROWS * LANES * K;
                float *o[ROWS];
                int64_t keys[ROWS];
                for (int r = 0; r < R; r++) {
                    const int64_t n = from + (r0 + r) / share, h = g * share + (r0 + r) % share;
                    const float *q = qkv + n * W + h * dim;
                    for (int64_t d = 0; d < dim; d++) query[d * R + r] = q[d] * scale;
                    o[r] = out + ((only_last ? b : n) * heads + h) * dim;
                    keys[r] = start[b] + (n - offset[b]) + 1;
                }
#define CASE(n)                                                                                                         \
    case n:                                                                                                             \
        attend_rows(n, query, o, keys, pool_k, pool_v, tables + b * K, kv, g, dim, padded, score);                      \
        break;
                switch (R) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) }
            }
        }
}

/* x += y where y is given; out = x / rms(x) * weight. */
void ajet_norm(float *x, const float *y, const float *weight, float *out, int64_t N, int64_t H, float eps) {
    const int64_t whole = H - H % LANES;
    for (int64_t n = 0; n < N; n++, x += H, out += H) {
        vec squares = splat(0);
        float rest = 0;
        if (y) {
            for (int64_t i = 0; i < H; i++) x[i] += y[i];
            y += H;
        }
        for (int64_t i = 0; i < whole; i += LANES) {
            const vec v = *(const vec_u *)(x + i);
            squares += v * v;
        }
        for (int64_t i = whole; i < H; i++) rest += x[i] * x[i];
        const float by = 1.0f / sqrtf((sum_lanes(squares) + rest) / (float)H + eps);
        for (int64_t i = 0; i < H; i++) out[i] = x[i] * by * weight[i];
    }
}

/* out [N, I] = silu(gate) * up of [N, gate | up]. */
void ajet_gate(const float *gate_up, float *out, int64_t N, int64_t I) {
    for (int64_t n = 0; n < N; n++, gate_up += 2 * I, out += I) {
        int64_t i = 0;
        for (; i + LANES <= I; i += LANES) {
            const vec g = *(const vec_u *)(gate_up + i), u = *(const vec_u *)(gate_up + I + i);
            *(vec_u *)(out + i) = g / (splat(1.0f) + vexp(-g)) * u;
        }
        for (; i < I; i++) out[i] = gate_up[i] / (1.0f + expf(-gate_up[i])) * gate_up[I + i];
    }
}
