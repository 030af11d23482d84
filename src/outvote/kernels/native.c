/* Kernels for a CPU; called by native.py, built by hatch_build.py.

Without libraries and without the headers of Python. Vectors are those of GCC and Clang; there are
intrinsics only for minima, maxima and stores that bypass the cache. Plain C is vectorised by the
compiler. The file is built for several levels of x86-64, and once for any other processor. */

#include <stdint.h>
#include <string.h>
#if defined(__SSE__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
enum { LANES = 16, MOST_VECTORS = 4 };
#elif defined(__AVX__)
enum { LANES = 8, MOST_VECTORS = 2 };
#else
enum { LANES = 4, MOST_VECTORS = 2 };
#endif
typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Mask __attribute__((vector_size(4 * LANES)));
typedef float HalfLine __attribute__((vector_size(32), aligned(4), may_alias));
#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int32_t Indices __attribute__((vector_size(32)));
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (Indices){__VA_ARGS__})
#endif

enum {
    /* Floats of a line of the cache, and of half a line. */
    LINE = 16,
    HALF = 8,
    /* Of KeyedOrder in keyed_order.py. */
    NUM_ROUNDS = 6,
    /* Coordinates that are copied together, at most, and whose differences are squared together. */
    MOST_COPIED = 1024,
    SQUARED = 256,
    /* Coordinates that are sorted together: one comparator waits for another. */
    SORTED = 64,
    /* So many floats between the rows of a buffer spread them over the whole cache. */
    GAP = 16,
    /* Coordinates of a group that are centred together: they fit the L1 cache. */
    CENTRED = 64,
    /* Products of so many coordinates are added up in float32, and their sums in float64. */
    MULTIPLIED = 512,
    /* Clients whose products with others are formed together. */
    TILE = 4,
};

/* The checksum of this file when it was built: a library of another version is not used. */
uint32_t outvote_source(void) { return SOURCE; }

/* The level of x86-64 that this processor has: 4, 3, or 0 for anything else. */
int outvote_level(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("bmi") || !__builtin_cpu_supports("bmi2"))
        return 0;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512cd") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vl"))
        return 3;
    return 4;
#else
    return 0;
#endif
}

/* A random order of the coordinates: KeyedOrder in keyed_order.py. */
typedef struct {
    int64_t size;
    int32_t num_rows, num_columns;
    const int32_t *shifts;
} Order;

/* Return the position of a cell after all rounds, which may be beyond the last coordinate. */
static int64_t moved_back(const Order *order, int64_t cell)
{
    int64_t row = cell / order->num_columns, column = cell % order->num_columns;
    for (int round = NUM_ROUNDS - 1; round >= 0; round--) {
        const int32_t *shift = order->shifts + (int64_t)round * order->num_columns;
        if (round % 2 == 0) {
            column -= shift[row];
            column += column < 0 ? order->num_columns : 0;
        } else {
            row -= shift[column];
            row += row < 0 ? order->num_rows : 0;
        }
    }
    return row * order->num_columns + column;
}

/* Without a sign, what falls below 0 becomes huge, and the bound added makes it right. */
static inline uint32_t subtract_modulo(uint32_t value, int32_t shift, uint32_t bound)
{
    uint32_t moved = value - (uint32_t)shift, wrapped = moved + bound;
    return moved < wrapped ? moved : wrapped;
}

/* Write the positions of some cells of one row. */
static void find_in_row(const Order *order, uint32_t own, uint32_t first, int32_t num,
                        int32_t *restrict to)
{
    const uint32_t rows = (uint32_t)order->num_rows, columns = (uint32_t)order->num_columns;
    const int32_t *restrict shifts = order->shifts;
    for (int32_t k = 0; k < num; k++) {
        uint32_t column = first + (uint32_t)k;
        uint32_t row = subtract_modulo(own, shifts[5 * columns + column], rows);
        column = subtract_modulo(column, shifts[4 * columns + row], columns);
        row = subtract_modulo(row, shifts[3 * columns + column], rows);
        column = subtract_modulo(column, shifts[2 * columns + row], columns);
        row = subtract_modulo(row, shifts[columns + column], rows);
        column = subtract_modulo(column, shifts[row], columns);
        to[k] = (int32_t)(row * columns + column);
    }
}

/* Write the positions of the coordinates from `start` up to, not with, `stop`. */
static void find(const Order *order, int64_t start, int64_t stop, int32_t *to)
{
    for (int64_t at = start; at < stop;) {
        int64_t row = at / order->num_columns, column = at % order->num_columns;
        int64_t num = order->num_columns - column;
        num = num < stop - at ? num : stop - at;
        find_in_row(order, (uint32_t)row, (uint32_t)column, (int32_t)num, to + (at - start));
        at += num;
    }
    for (int64_t k = 0; k < stop - start; k++)
        if (to[k] >= order->size) {
            int64_t cell = to[k];
            while (cell >= order->size)
                cell = moved_back(order, cell);
            to[k] = (int32_t)cell;
        }
}

/* Swap rows and columns of 8 x 8 numbers. */
static inline void transpose(HalfLine *rows)
{
    HalfLine a[HALF], b[HALF];
    for (int k = 0; k < HALF; k += 2) {
        a[k] = SHUFFLE(rows[k], rows[k + 1], 0, 8, 2, 10, 4, 12, 6, 14);
        a[k + 1] = SHUFFLE(rows[k], rows[k + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    }
    for (int k = 0; k < HALF; k += 4)
        for (int j = 0; j < 2; j++) {
            b[k + j] = SHUFFLE(a[k + j], a[k + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            b[k + j + 2] = SHUFFLE(a[k + j], a[k + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int k = 0; k < HALF / 2; k++) {
        rows[k] = SHUFFLE(b[k], b[k + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        rows[k + 4] = SHUFFLE(b[k], b[k + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

/* Read 8 coordinates of 8 rows, one vector for each coordinate. */
static inline void read_transposed(const float *from, int64_t step, HalfLine *to)
{
    for (int k = 0; k < HALF; k++)
        to[k] = *(const HalfLine *)(from + k * step);
    transpose(to);
}

/* Transpose a whole matrix; both sizes are multiples of 8. */
static inline void write_transposed(const float *from, int32_t num_rows, int32_t num_columns,
                                    float *to)
{
    for (int32_t row = 0; row < num_rows; row += HALF)
        for (int32_t column = 0; column < num_columns; column += HALF) {
            HalfLine some[HALF];
            read_transposed(from + row * num_columns + column, num_columns, some);
            for (int k = 0; k < HALF; k++)
                *(HalfLine *)(to + (column + k) * num_rows + row) = some[k];
        }
}

static inline void store_bypassing_cache(float *to, HalfLine value)
{
#if defined(__AVX__)
    _mm256_stream_ps(to, (__m256)value);
#elif defined(__SSE__)
    _mm_stream_ps(to, (__m128){value[0], value[1], value[2], value[3]});
    _mm_stream_ps(to + 4, (__m128){value[4], value[5], value[6], value[7]});
#else
    *(HalfLine *)to = value;
#endif
}

/* Copy the coordinates of all clients to their positions, `width` numbers for each.

`buffer` has `width` rows of `step` numbers, at least HALF more than `copied`; what is beyond the
clients is 0. */
void outvote_scatter(int64_t size, int32_t num_rows, int32_t num_columns, const int32_t *shifts,
                     int64_t start, int64_t stop, const float *values, int64_t stride,
                     int32_t num_clients, int32_t width, int32_t copied, int64_t step, float *to,
                     float *buffer)
{
    Order order = {size, num_rows, num_columns, shifts};
    int32_t positions[MOST_COPIED];
    memset(buffer, 0, sizeof(float) * (size_t)(step * width));
    for (; start < stop; start += copied) {
        const int32_t num = stop - start < copied ? (int32_t)(stop - start) : copied;
        find(&order, start, start + num, positions);
        for (int32_t client = 0; client < num_clients; client++)
            memcpy(buffer + client * step, values + client * stride + start,
                   sizeof(float) * (size_t)num);
        for (int32_t first = 0; first < num; first += HALF)
            for (int32_t client = 0; client < width; client += LINE) {
                HalfLine low[HALF], high[HALF];
                read_transposed(buffer + client * step + first, step, low);
                read_transposed(buffer + (client + HALF) * step + first, step, high);
                for (int32_t k = 0; k < HALF && first + k < num; k++) {
                    float *own = to + (int64_t)positions[first + k] * width + client;
                    store_bypassing_cache(own, low[k]);
                    store_bypassing_cache(own + HALF, high[k]);
                }
            }
    }
#if defined(__SSE__)
    _mm_sfence();
#endif
}

/* Add to `sums` the products of TILE clients with those of some vectors. */
static inline __attribute__((always_inline)) void multiply_tile(
    const float *block, int32_t num, int64_t width, int32_t row, int32_t column,
    const int num_vectors, float *sums)
{
    Vector total[TILE][MOST_VECTORS];
    float *to = sums + row * width + column;
    for (int i = 0; i < TILE; i++)
        for (int j = 0; j < num_vectors; j++)
            total[i][j] = *(Vector *)(to + i * width + LANES * j);
    for (int32_t k = 0; k < num; k++) {
        const float *own = block + k * width;
        for (int j = 0; j < num_vectors; j++) {
            Vector right = *(const Vector *)(own + column + LANES * j);
            for (int i = 0; i < TILE; i++)
                total[i][j] += right * own[row + i];
        }
    }
    for (int i = 0; i < TILE; i++)
        for (int j = 0; j < num_vectors; j++)
            *(Vector *)(to + i * width + LANES * j) = total[i][j];
}

/* Add to `sums` the products of the clients, all those below the diagonal and some above it. */
static void multiply(const float *block, int32_t num, int32_t num_clients, int64_t width,
                     float *sums)
{
    for (int32_t row = 0; row < num_clients; row += TILE) {
        const int32_t end = (row + TILE - 1) / LANES + 1;
        int32_t at = 0;
        for (; end - at >= MOST_VECTORS; at += MOST_VECTORS)
            multiply_tile(block, num, width, row, LANES * at, MOST_VECTORS, sums);
#if defined(__AVX512F__)
        if (end - at == 3)
            multiply_tile(block, num, width, row, LANES * at, 3, sums);
        if (end - at == 2)
            multiply_tile(block, num, width, row, LANES * at, 2, sums);
#endif
        if (end - at == 1)
            multiply_tile(block, num, width, row, LANES * at, 1, sums);
    }
}

/* Add the lower triangle of `sums` to that of `total`, and clear it. */
static void move_sums(float *sums, int32_t num_clients, int64_t width, double *total)
{
    for (int32_t i = 0; i < num_clients; i++)
        for (int32_t j = 0; j <= i; j++)
            total[i * width + j] += (double)sums[i * width + j];
    memset(sums, 0, sizeof(float) * (size_t)(width * width));
}

/* Write the inner products of the clients in each group, relative to one of them.

`buffer` has CENTRED + `width` rows of `width` numbers, `total` has `width` rows. */
void outvote_products(const float *values, int64_t num_groups, int32_t num_coordinates,
                      int32_t num_clients, int32_t width, int32_t centre, float *to, float *buffer,
                      double *total)
{
    float *block = buffer, *sums = buffer + CENTRED * width;
    memset(sums, 0, sizeof(float) * (size_t)width * (size_t)width);
    for (int64_t group = 0; group < num_groups; group++) {
        memset(total, 0, sizeof(double) * (size_t)width * (size_t)width);
        for (int32_t first = 0; first < num_coordinates; first += CENTRED) {
            int32_t num = num_coordinates - first < CENTRED ? num_coordinates - first : CENTRED;
            for (int32_t k = 0; k < num; k++) {
                const float *from = values + (int64_t)(first + k) * width;
                float *own = block + (int64_t)k * width;
                for (int32_t j = 0; j < width; j += LANES)
                    *(Vector *)(own + j) = *(const Vector *)(from + j) - from[centre];
            }
            multiply(block, num, num_clients, width, sums);
            if ((first + CENTRED) % MULTIPLIED == 0 || first + num == num_coordinates)
                move_sums(sums, num_clients, width, total);
        }
        for (int32_t i = 0; i < num_clients; i++)
            for (int32_t j = 0; j < num_clients; j++) {
                const int64_t row = i < j ? j : i, column = i < j ? i : j;
                *to++ = (float)total[row * width + column];
            }
        values += (int64_t)num_coordinates * width;
    }
}

/* Add up the squared differences of all pairs of clients in the group of each coordinate.

The positions are cut into `num_large` groups, then `num_small`. Sums of `summed` coordinates in
float32, in `sums`, are added to `total`. `buffer` has a row of SQUARED + GAP numbers for each pair,
rounded up to HALF; what is beyond the pairs is 0. */
void outvote_pair_sums(int64_t size, int32_t num_rows, int32_t num_columns, const int32_t *shifts,
                       int64_t start, int64_t stop, const float *values, int64_t stride,
                       int32_t num_clients, int32_t num_large, int32_t large, int32_t num_small,
                       int32_t small, int64_t summed, float *sums, float *buffer, double *total)
{
    Order order = {size, num_rows, num_columns, shifts};
    const int64_t step = SQUARED + GAP;
    const int32_t num_pairs = num_clients * (num_clients - 1) / 2;
    const int32_t width = (num_pairs + HALF - 1) / HALF * HALF;
    const int64_t num_sums = (int64_t)(num_large + num_small) * width;
    const int32_t end = num_large * large;
    int32_t positions[SQUARED], groups[SQUARED];
    int64_t added = 0;
    memset(buffer, 0, sizeof(float) * (size_t)(step * width));
    memset(sums, 0, sizeof(float) * (size_t)num_sums);
    for (; start < stop; start += SQUARED) {
        const int32_t num = stop - start < SQUARED ? (int32_t)(stop - start) : SQUARED;
        /* The next values come from memory while the positions of these are worked out. */
        for (int32_t client = 0; client < num_clients; client++)
            for (int32_t k = num; k < 2 * num; k += LINE)
                __builtin_prefetch(values + client * stride + start + k);
        find(&order, start, start + num, positions);
        for (int32_t k = 0; k < num; k++) {
            /* All bits are set in the larger groups; a branch would be guessed wrong. */
            const int32_t is_large = -(positions[k] < end);
            const int32_t from = positions[k] - (end & ~is_large);
            const int32_t own = small + ((large - small) & is_large);
            /* With so few groups, the quotient is off by one at most. */
            const int32_t near = (int32_t)((float)from / (float)own);
            const int32_t rest = from - near * own;
            groups[k] = near + (rest >= own) - (rest < 0) + (num_large & ~is_large);
        }
        float *squared = buffer;
        for (int32_t i = 1; i < num_clients; i++)
            for (int32_t j = 0; j < i; j++, squared += step) {
                const float *left = values + i * stride + start;
                const float *right = values + j * stride + start;
                for (int32_t k = 0; k < num; k++) {
                    float apart = left[k] - right[k];
                    squared[k] = apart * apart;
                }
            }
        for (int32_t first = 0; first < num; first += HALF)
            for (int32_t pair = 0; pair < width; pair += HALF) {
                HalfLine some[HALF];
                read_transposed(buffer + pair * step + first, step, some);
                for (int32_t k = 0; k < HALF && first + k < num; k++)
                    *(HalfLine *)(sums + (int64_t)groups[first + k] * width + pair) += some[k];
            }
        added += num;
        if (added >= summed || start + num >= stop) {
            for (int64_t k = 0; k < num_sums; k++) {
                total[k] += (double)sums[k];
                sums[k] = 0.0f;
            }
            added = 0;
        }
    }
}

static inline Vector lesser(Vector a, Vector b)
{
#if defined(__AVX512F__)
    return (Vector)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
    return (Vector)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE__)
    return (Vector)_mm_min_ps((__m128)a, (__m128)b);
#else
    const Mask is_less = a < b;
    return (Vector)(((Mask)a & is_less) | ((Mask)b & ~is_less));
#endif
}

static inline Vector greater(Vector a, Vector b)
{
#if defined(__AVX512F__)
    return (Vector)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
    return (Vector)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE__)
    return (Vector)_mm_max_ps((__m128)a, (__m128)b);
#else
    const Mask is_greater = a > b;
    return (Vector)(((Mask)a & is_greater) | ((Mask)b & ~is_greater));
#endif
}

/* Put two rows of SORTED numbers in order, number by number. */
static inline void compare(float *low, float *high)
{
    for (int k = 0; k < SORTED; k += LANES) {
        const Vector a = *(Vector *)(low + k), b = *(Vector *)(high + k);
        *(Vector *)(low + k) = lesser(a, b);
        *(Vector *)(high + k) = greater(a, b);
    }
}

/* Sort the clients of each coordinate into rows of `num_clients`, by a network of comparators.

Either `coordinate_step` or `client_step` is 1, the other is how far apart the values are. `buffer`
has SORTED numbers for each client, rounded up to HALF, and then as many again. */
void outvote_sort(const float *values, int64_t num_coordinates, int32_t num_clients,
                  int64_t coordinate_step, int64_t client_step, const int16_t *comparators,
                  int32_t num_comparators, float *to, float *buffer)
{
    const int32_t width = (num_clients + HALF - 1) / HALF * HALF;
    float *sorted = buffer + SORTED * width;
    memset(buffer, 0, sizeof(float) * SORTED * (size_t)width * 2);
    for (int64_t start = 0; start < num_coordinates; start += SORTED) {
        const int32_t num =
            num_coordinates - start < SORTED ? (int32_t)(num_coordinates - start) : SORTED;
        const float *own = values + start * coordinate_step;
        if (coordinate_step == 1) {
            for (int32_t client = 0; client < num_clients; client++)
                memcpy(buffer + client * SORTED, own + client * client_step,
                       sizeof(float) * (size_t)num);
        } else {
            for (int32_t k = 0; k < num; k++)
                memcpy(sorted + k * width, own + k * coordinate_step,
                       sizeof(float) * (size_t)num_clients);
            write_transposed(sorted, SORTED, width, buffer);
        }
        for (int32_t k = 0; k < num_comparators; k++)
            compare(buffer + comparators[2 * k] * SORTED,
                    buffer + comparators[2 * k + 1] * SORTED);
        write_transposed(buffer, width, SORTED, sorted);
        for (int32_t k = 0; k < num; k++)
            memcpy(to + (start + k) * num_clients, sorted + k * width,
                   sizeof(float) * (size_t)num_clients);
    }
}
