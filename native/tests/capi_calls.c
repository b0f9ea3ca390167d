#include "capi_calls.h"

#include <math.h>
#include <string.h>

enum { MOST = 8 }; /* ranks */

#define OK(call) \
    if ((call) != RANKWISE_OK) return __LINE__
#define EXPECT(condition) \
    if (!(condition)) return __LINE__

static int64_t sum_to(int64_t n) { return n * (n + 1) / 2; }

static int vector_collectives(rankwise_comm comm) {
    const int n = rankwise_world_size(comm), me = rankwise_rank(comm);
    uint64_t counts[MOST];
    int32_t mine[MOST], all[MOST * MOST], part[MOST];
    uint64_t before = 0, total = 0;
    for (int r = 0; r < n; ++r) {
        counts[r] = (uint64_t)r;
        total += counts[r];
        if (r < me) before += counts[r];
    }
    for (int i = 0; i < MOST; ++i) mine[i] = 100 * me + i;
    OK(rankwise_all_gather_v(comm, mine, all, counts, RANKWISE_I32));
    for (int r = 0, at = 0; r < n; ++r)
        for (int i = 0; i < r; ++i) EXPECT(all[at++] == 100 * r + i);
    memset(all, 0, sizeof all);
    OK(rankwise_gather_v(comm, mine, all, counts, RANKWISE_I32, n - 1));
    EXPECT(me != n - 1 || n < 2 || all[0] == 100);
    for (uint64_t i = 0; i < total; ++i) all[i] = (int32_t)i;
    OK(rankwise_scatter_v(comm, all, part, counts, RANKWISE_I32, 0));
    for (int i = 0; i < me; ++i) EXPECT(part[i] == (int32_t)before + i);
    OK(rankwise_reduce_scatter_v(comm, all, part, counts, RANKWISE_I32, RANKWISE_SUM));
    for (int i = 0; i < me; ++i) EXPECT(part[i] == n * ((int32_t)before + i));
    uint64_t out[MOST], in[MOST]; /* rank r sends r + 1 elements to each */
    for (int r = 0; r < n; ++r) out[r] = (uint64_t)me + 1, in[r] = (uint64_t)r + 1;
    int32_t sent[MOST * MOST], received[MOST * MOST];
    for (int i = 0; i < n * (me + 1); ++i) sent[i] = me;
    OK(rankwise_all_to_all_v(comm, sent, received, out, in, RANKWISE_I32));
    for (int r = 0, at = 0; r < n; ++r)
        for (int i = 0; i <= r; ++i) EXPECT(received[at++] == r);
    return 0;
}

int capi_collectives(rankwise_comm comm) {
    const int n = rankwise_world_size(comm), me = rankwise_rank(comm);
    OK(rankwise_barrier(comm));
    int64_t x = me + 1;
    OK(rankwise_all_reduce(comm, &x, 1, RANKWISE_I64, RANKWISE_SUM));
    EXPECT(x == sum_to(n));
    x = me;
    OK(rankwise_broadcast(comm, &x, 1, RANKWISE_I64, n - 1));
    EXPECT(x == n - 1);
    x = me;
    OK(rankwise_reduce(comm, &x, 1, RANKWISE_I64, RANKWISE_MAX, 0));
    EXPECT(x == (me == 0 ? n - 1 : me));
    int64_t all[MOST] = {0}, other[MOST] = {0};
    x = 10 * me;
    OK(rankwise_all_gather(comm, &x, all, 1, RANKWISE_I64));
    for (int r = 0; r < n; ++r) EXPECT(all[r] == 10 * r);
    OK(rankwise_gather(comm, &x, me == 0 ? other : NULL, 1, RANKWISE_I64, 0));
    EXPECT(me != 0 || memcmp(all, other, sizeof all) == 0);
    OK(rankwise_scatter(comm, me == 0 ? all : NULL, &x, 1, RANKWISE_I64, 0));
    EXPECT(x == 10 * me);
    OK(rankwise_reduce_scatter(comm, all, &x, 1, RANKWISE_I64, RANKWISE_SUM));
    EXPECT(x == 10 * me * n);
    for (int r = 0; r < n; ++r) all[r] = 100 * me + r;
    OK(rankwise_all_to_all(comm, all, other, 1, RANKWISE_I64));
    for (int r = 0; r < n; ++r) EXPECT(other[r] == 100 * r + me);
    const int line = vector_collectives(comm);
    if (line) return line;

    rankwise_comm part;
    OK(rankwise_split(comm, me % 2, -me, &part)); /* in reverse order */
    EXPECT(rankwise_world_size(part) == (n + 1 - me % 2) / 2);
    EXPECT(rankwise_rank(part) == rankwise_world_size(part) - 1 - me / 2);
    OK(rankwise_barrier(part));
    OK(rankwise_close(&part, 5));
    EXPECT(part == NULL);
    OK(rankwise_split(comm, -1, 0, &part));
    EXPECT(part == NULL);
    OK(rankwise_set_timeout(comm, 50));
    EXPECT(rankwise_timeout(comm) == 50);
    int64_t flags = ~(1 << me);
    OK(rankwise_agree(comm, &flags));
    EXPECT(flags == ~((1 << n) - 1));
    return 0;
}

int capi_messages(rankwise_comm comm) {
    const int n = rankwise_world_size(comm), me = rankwise_rank(comm), next = (me + 1) % n, before = (me + n - 1) % n;
    static const double zeros[1 << 16];
    static _Thread_local double into[1 << 16];
    double small[2] = {me, 0.5}, got[4] = {0};
    rankwise_message message;
    rankwise_request sent, large, receive;
    OK(rankwise_isend(comm, small, 2, RANKWISE_F64, next, 7, &sent));
    OK(rankwise_recv(comm, got, 2, RANKWISE_F64, RANKWISE_ANY, 7, &message));
    EXPECT(message.source == before && message.tag == 7 && message.count == 2 && message.dtype == RANKWISE_F64);
    EXPECT(got[0] == before && got[1] == 0.5);
    OK(rankwise_wait(&sent, -1, NULL));
    EXPECT(sent == NULL);

    OK(rankwise_send(comm, small, 1, RANKWISE_F64, next, 8)); /* short enough to be kept without a receive */
    int found = 0;
    while (!found) OK(rankwise_probe(comm, before, RANKWISE_ANY, &found, &message));
    EXPECT(message.tag == 8 && message.count == 1);
    OK(rankwise_recv_up_to(comm, got, 4, RANKWISE_F64, before, 8, &message));
    EXPECT(message.count == 1 && got[0] == before);

    OK(rankwise_irecv(comm, got, 1, RANKWISE_F64, before, 9, &receive));
    EXPECT(rankwise_wait(&receive, 0, NULL) == RANKWISE_ERR_TIMEOUT && receive != NULL);
    OK(rankwise_cancel(&receive));
    EXPECT(receive == NULL);

    OK(rankwise_isend(comm, zeros, 1 << 16, RANKWISE_F64, next, 10, &large));
    OK(rankwise_irecv(comm, into, 1 << 16, RANKWISE_F64, before, 10, &receive));
    int done = 0;
    while (!done) OK(rankwise_test(&receive, &done, &message));
    EXPECT(receive == NULL && message.count == 1 << 16);
    OK(rankwise_wait(&large, 20, NULL));
    OK(rankwise_sync(comm));
    return 0;
}

static int wrong_arguments(rankwise_comm comm) {
    double x = 0;
    EXPECT(rankwise_all_reduce(NULL, &x, 1, RANKWISE_F64, RANKWISE_SUM) == RANKWISE_ERR_ARGUMENT);
    EXPECT(strncmp(rankwise_error_message(), "comm: NULL given", 16) == 0);
    EXPECT(rankwise_all_reduce(comm, NULL, 1, RANKWISE_F64, RANKWISE_SUM) == RANKWISE_ERR_ARGUMENT);
    EXPECT(rankwise_all_reduce(comm, &x, (uint64_t)-1, RANKWISE_F64, RANKWISE_SUM) == RANKWISE_ERR_ARGUMENT);
    EXPECT(strncmp(rankwise_error_message(), "count: -1 given", 15) == 0);
    EXPECT(rankwise_all_reduce(comm, &x, 1, (rankwise_dtype)17, RANKWISE_SUM) == RANKWISE_ERR_ARGUMENT);
    EXPECT(rankwise_all_reduce(comm, &x, 1, RANKWISE_F64, RANKWISE_BAND) == RANKWISE_ERR_ARGUMENT);
    EXPECT(rankwise_broadcast(comm, &x, 1, RANKWISE_F64, rankwise_world_size(comm)) == RANKWISE_ERR_ARGUMENT);
    EXPECT(rankwise_send(comm, &x, 1, RANKWISE_F64, 0, -1) == RANKWISE_ERR_ARGUMENT);
    EXPECT(rankwise_error_rank() == -1);
    EXPECT(rankwise_init_version(RANKWISE_API_VERSION + 1, &comm) == RANKWISE_ERR_UNSUPPORTED && comm == NULL);
    EXPECT(rankwise_rank(NULL) == -1 && rankwise_world_size(NULL) == -1);
    return 0;
}

/* Elements of 8 bytes whose bytes wrap to 0, and those of which only all ranks' together do. */
static int wrong_sizes(rankwise_comm comm) {
    const uint64_t far = UINT64_C(1) << 61, n = (uint64_t)rankwise_world_size(comm);
    const uint64_t together = (UINT64_C(1) << 60) / n + 1;
    double x[MOST * 2] = {0}, y[MOST * 2] = {0};
    uint64_t counts[MOST], ones[MOST];
    rankwise_request request;
    for (uint64_t r = 0; r < n; ++r) counts[r] = together, ones[r] = 1;
#define REFUSED(call) EXPECT((call) == RANKWISE_ERR_ARGUMENT)
    REFUSED(rankwise_broadcast(comm, x, far, RANKWISE_F64, 0));
    REFUSED(rankwise_all_reduce(comm, x, far, RANKWISE_F64, RANKWISE_SUM));
    EXPECT(strncmp(rankwise_error_message(), "count: 2305843009213693952 given, expected at most ", 51) == 0);
    REFUSED(rankwise_reduce(comm, x, far, RANKWISE_F64, RANKWISE_SUM, 0));
    REFUSED(rankwise_all_gather(comm, x, y, together, RANKWISE_F64));
    REFUSED(rankwise_gather(comm, x, y, together, RANKWISE_F64, 0));
    REFUSED(rankwise_scatter(comm, x, y, together, RANKWISE_F64, 0));
    REFUSED(rankwise_reduce_scatter(comm, x, y, together, RANKWISE_F64, RANKWISE_SUM));
    REFUSED(rankwise_all_to_all(comm, x, y, together, RANKWISE_F64));
    REFUSED(rankwise_all_gather_v(comm, x, y, counts, RANKWISE_F64));
    REFUSED(rankwise_gather_v(comm, x, y, counts, RANKWISE_F64, 0));
    REFUSED(rankwise_scatter_v(comm, x, y, counts, RANKWISE_F64, 0));
    REFUSED(rankwise_reduce_scatter_v(comm, x, y, counts, RANKWISE_F64, RANKWISE_SUM));
    REFUSED(rankwise_all_to_all_v(comm, x, y, counts, counts, RANKWISE_F64));
    REFUSED(rankwise_send(comm, x, far, RANKWISE_F64, 0, 0));
    REFUSED(rankwise_recv(comm, x, far, RANKWISE_F64, 0, 0, NULL));
    REFUSED(rankwise_recv_up_to(comm, x, far, RANKWISE_F64, 0, 0, NULL));
    REFUSED(rankwise_isend(comm, x, far, RANKWISE_F64, 0, 0, &request));
    REFUSED(rankwise_irecv(comm, x, far, RANKWISE_F64, 0, 0, &request));
    /* memory that is not there, or in which one array lies within the other */
    REFUSED(rankwise_all_gather(comm, x, x, 1, RANKWISE_F64));
    REFUSED(rankwise_reduce_scatter(comm, x, x + n - 1, 1, RANKWISE_F64, RANKWISE_SUM));
    REFUSED(rankwise_all_to_all(comm, x, x, 1, RANKWISE_F64));
    REFUSED(rankwise_all_gather_v(comm, x + n - 1, x, ones, RANKWISE_F64));
    REFUSED(rankwise_all_gather_v(comm, NULL, x, ones, RANKWISE_F64));
    REFUSED(rankwise_all_to_all_v(comm, x, NULL, ones, ones, RANKWISE_F64));
    return 0;
}

/* A time that is no number is refused at once; -1 means the communicator's to rankwise_wait alone. */
static int wrong_times(rankwise_comm comm) {
    const double timeout = rankwise_timeout(comm), wrong[] = {NAN, -NAN, -1, -INFINITY};
    double x;
    rankwise_request request;
    rankwise_comm part;
    OK(rankwise_split(comm, 0, 0, &part));
    OK(rankwise_irecv(comm, &x, 1, RANKWISE_F64, rankwise_rank(comm), 77, &request));
    for (int i = 0; i < 4; ++i) {
        REFUSED(rankwise_set_timeout(comm, wrong[i]));
        REFUSED(rankwise_close(&part, wrong[i]));
        EXPECT(part != NULL);
        if (i < 2) REFUSED(rankwise_wait(&request, wrong[i], NULL));
        EXPECT(request != NULL);
    }
    REFUSED(rankwise_set_timeout(comm, 0));
    EXPECT(rankwise_timeout(comm) == timeout);
    OK(rankwise_cancel(&request));
    OK(rankwise_barrier(part)); /* it is open */
    OK(rankwise_close(&part, 5));
    return 0;
}

int capi_refusals(rankwise_comm comm) {
    const int size = wrong_sizes(comm);
    const int time = size ? size : wrong_times(comm);
    return time ? time : wrong_arguments(comm);
}

int capi_reduce(rankwise_comm comm, uint64_t count) {
    double x[4] = {0};
    return rankwise_all_reduce(comm, x, count, RANKWISE_F64, RANKWISE_SUM);
}
