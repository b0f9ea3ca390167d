/* rankwise.h: the engine of rankwise for C, C++, Fortran, and whatever calls C.
 *
 * A program that `rankwise run -n 4 -- ./program` starts joins the job with rankwise_init; no Python is in the process.
 * Its ranks may be programs in several languages, Python among them. Code that a Python rank calls takes the
 * communicator of the rank's group from `group.handle` (rankwise_from_handle). docs/how-to/compiled.md shows both.
 *
 * Every function that can fail returns a status: RANKWISE_OK, or the kind of the error, whose text
 * rankwise_error_message returns. What an operation means, and when its memory may be used again, is as in Python
 * (docs/reference/operations.md): a collective is called by all ranks of the communicator in the same order, and is
 * complete when it returns. Any thread may call any function.
 *
 * An error shows where each rank made its call. Macros below give the engine the function, file and line of each call;
 * -DRANKWISE_NO_SITES leaves them out.
 *
 * Within one RANKWISE_API_VERSION nothing here changes, and a library of a later version still has what is here.
 */
#ifndef RANKWISE_H
#define RANKWISE_H

#include <stddef.h>
#include <stdint.h>

#define RANKWISE_API_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rankwise_comm_s* rankwise_comm;       /* one rank's end of one group */
typedef struct rankwise_request_s* rankwise_request; /* a message in progress; NULL: none, or it is complete */

typedef enum {
    RANKWISE_OK = 0,
    RANKWISE_ERR_ARGUMENT = 1,    /* a bad argument; nothing was sent, and the group is as before */
    RANKWISE_ERR_PEER_LOST = 2,   /* another rank ended, or aborted the group */
    RANKWISE_ERR_MISMATCH = 3,    /* the ranks' calls, or a message and its receive, differ */
    RANKWISE_ERR_TIMEOUT = 4,     /* ranks did not come in time */
    RANKWISE_ERR_UNSUPPORTED = 5, /* not possible here; the group is as before */
    RANKWISE_ERR_CLOSED = 6,      /* the communicator is closed */
    RANKWISE_ERR_MEMORY = 7,
    RANKWISE_ERR_INTERRUPTED = 8, /* in a Python process: a signal handler has raised, and its exception is pending */
    RANKWISE_ERR_OTHER = 9
} rankwise_status;

typedef enum {
    RANKWISE_F64 = 0,
    RANKWISE_F32 = 1,
    RANKWISE_F16 = 2,
    RANKWISE_BF16 = 3,
    RANKWISE_FP8E4M3 = 4,
    RANKWISE_FP8E5M2 = 5,
    RANKWISE_I64 = 6,
    RANKWISE_I32 = 7,
    RANKWISE_I16 = 8,
    RANKWISE_I8 = 9,
    RANKWISE_U64 = 10,
    RANKWISE_U32 = 11,
    RANKWISE_U16 = 12,
    RANKWISE_U8 = 13,
    RANKWISE_BOOL = 14,
    RANKWISE_C64 = 15,
    RANKWISE_C128 = 16
} rankwise_dtype;

typedef enum {
    RANKWISE_SUM = 0,
    RANKWISE_PROD = 1,
    RANKWISE_MIN = 2,
    RANKWISE_MAX = 3,
    RANKWISE_MEAN = 4,
    RANKWISE_BAND = 5,
    RANKWISE_BOR = 6,
    RANKWISE_BXOR = 7
} rankwise_op;

enum { RANKWISE_ANY = -1 }; /* any source, or any tag */

typedef struct {
    int source, tag;
    uint64_t count;
    rankwise_dtype dtype;
} rankwise_message; /* what has arrived */

/* ---- the job ---- */

/* Join the ranks that `rankwise run` has started; returns when all have come. Without a launcher it is a group of one
 * rank. A process joins once. What is still open when the program exits is closed then. */
int rankwise_init_version(int api_version, rankwise_comm* comm);
#define rankwise_init(comm) rankwise_init_version(RANKWISE_API_VERSION, comm)
/* The communicator of a Python group, from its `handle`. It is valid as long as the group is, which closes it. */
rankwise_comm rankwise_from_handle(uint64_t handle);
/* Finish what is pending within so many seconds, release the communicator, and set it to NULL, whatever is returned but
 * RANKWISE_ERR_ARGUMENT; RANKWISE_ERR_OTHER says what was still in progress. */
int rankwise_close(rankwise_comm* comm, double timeout);

/* Of a communicator that is not closed; -1 if comm is NULL. */
int rankwise_rank(rankwise_comm comm);
int rankwise_world_size(rankwise_comm comm);
/* Seconds, above 0, that an operation may wait for other ranks. NaN is refused here and below. */
double rankwise_timeout(rankwise_comm comm);
int rankwise_set_timeout(rankwise_comm comm, double seconds);
/* Collective: ranks with the same color form a new group, in the order of their keys. With a color below 0 this rank
 * joins none, and *part is NULL. */
int rankwise_split(rankwise_comm comm, int64_t color, int64_t key, rankwise_comm* part);

/* ---- collectives; count is in elements, which follow each other, aligned and in this machine's byte order; send and
 * recv must not overlap. A call with more bytes than can be addressed is a bad argument. ---- */

int rankwise_barrier(rankwise_comm comm); /* also completes this rank's messages */
int rankwise_broadcast(rankwise_comm comm, void* data, uint64_t count, rankwise_dtype dtype, int root);
int rankwise_all_reduce(rankwise_comm comm, void* data, uint64_t count, rankwise_dtype dtype, rankwise_op op);
int rankwise_reduce(rankwise_comm comm, void* data, uint64_t count, rankwise_dtype dtype, rankwise_op op, int root);
/* recv: count elements for each rank. Only root needs recv in gather, and send in scatter. */
int rankwise_all_gather(rankwise_comm comm, const void* send, void* recv, uint64_t count, rankwise_dtype dtype);
int rankwise_gather(rankwise_comm comm, const void* send, void* recv, uint64_t count, rankwise_dtype dtype, int root);
int rankwise_scatter(rankwise_comm comm, const void* send, void* recv, uint64_t count, rankwise_dtype dtype, int root);
int rankwise_reduce_scatter(rankwise_comm comm, const void* send, void* recv, uint64_t count, rankwise_dtype dtype,
                            rankwise_op op);
int rankwise_all_to_all(rankwise_comm comm, const void* send, void* recv, uint64_t count, rankwise_dtype dtype);
/* With a count for each rank; all ranks pass the same counts, except to all_to_all_v. */
int rankwise_all_gather_v(rankwise_comm comm, const void* send, void* recv, const uint64_t* counts,
                          rankwise_dtype dtype);
int rankwise_gather_v(rankwise_comm comm, const void* send, void* recv, const uint64_t* counts, rankwise_dtype dtype,
                      int root);
int rankwise_scatter_v(rankwise_comm comm, const void* send, void* recv, const uint64_t* counts, rankwise_dtype dtype,
                       int root);
int rankwise_reduce_scatter_v(rankwise_comm comm, const void* send, void* recv, const uint64_t* counts,
                              rankwise_dtype dtype, rankwise_op op);
int rankwise_all_to_all_v(rankwise_comm comm, const void* send, void* recv, const uint64_t* send_counts,
                          const uint64_t* recv_counts, rankwise_dtype dtype);

/* ---- messages; they match by (source, tag) in the order sent ---- */

/* Returns when `data` may be changed, perhaps before the message is received. */
int rankwise_send(rankwise_comm comm, const void* data, uint64_t count, rankwise_dtype dtype, int dest, int tag);
/* The message must have this count and dtype. src and tag may be RANKWISE_ANY, and message NULL, here and below. */
int rankwise_recv(rankwise_comm comm, void* data, uint64_t count, rankwise_dtype dtype, int src, int tag,
                  rankwise_message* message);
/* A message of any dtype that fits into the memory. */
int rankwise_recv_up_to(rankwise_comm comm, void* data, uint64_t count, rankwise_dtype dtype, int src, int tag,
                        rankwise_message* message);
/* These start a message, and *request must be waited for, tested until it is complete, or cancelled. Its memory may be
 * used again then. */
int rankwise_isend(rankwise_comm comm, const void* data, uint64_t count, rankwise_dtype dtype, int dest, int tag,
                   rankwise_request* request);
int rankwise_irecv(rankwise_comm comm, void* data, uint64_t count, rankwise_dtype dtype, int src, int tag,
                   rankwise_request* request);
/* Wait for at most so many seconds; below 0: for the communicator's timeout. *request is NULL afterwards, unless the
 * time was too short (RANKWISE_ERR_TIMEOUT): then the message is still in progress. message: of a receive. */
int rankwise_wait(rankwise_request* request, double timeout, rankwise_message* message);
/* The same without waiting: *done is 0 if the message is still in progress. */
int rankwise_test(rankwise_request* request, int* done, rankwise_message* message);
/* End it, so that its memory may be used again. */
int rankwise_cancel(rankwise_request* request);
/* Whether a message has arrived that no receive has taken; *found is 0 or 1. */
int rankwise_probe(rankwise_comm comm, int src, int tag, int* found, rankwise_message* message);
/* Complete all messages that this rank has started. */
int rankwise_sync(rankwise_comm comm);

/* ---- failures ---- */

/* The text of the latest error of the calling thread, "" before the first; it stays valid until the next one. */
const char* rankwise_error_message(void);
/* The rank that the latest error of the calling thread is about, such as the lost one, or -1. */
int rankwise_error_rank(void);
/* Nothing for RANKWISE_OK; else print the latest error of the calling thread and end the program with status 1. */
void rankwise_check(int status);
/* Fail the group: every rank's present or next operation returns RANKWISE_ERR_PEER_LOST with this text. */
int rankwise_abort(rankwise_comm comm, const char* why);
/* Collective over the ranks that live, after a failure: a new group of them, in their order. */
int rankwise_shrink(rankwise_comm comm, rankwise_comm* survivors);
/* Likewise: *flags becomes the bitwise AND over the ranks that live, the same on each of them. */
int rankwise_agree(rankwise_comm comm, int64_t* flags);

/* ---- what the macros call ---- */

/* The calling thread makes its next call of this library here. The texts must live until that call returns. */
void rankwise_at(const char* file, int line, const char* function);

#ifdef __cplusplus
}
#endif

#ifndef RANKWISE_NO_SITES
#define RANKWISE_HERE_ rankwise_at(__FILE__, __LINE__, __func__)
#undef rankwise_init
#define rankwise_init(comm) (RANKWISE_HERE_, rankwise_init_version(RANKWISE_API_VERSION, comm))
#define rankwise_close(...) (RANKWISE_HERE_, rankwise_close(__VA_ARGS__))
#define rankwise_split(...) (RANKWISE_HERE_, rankwise_split(__VA_ARGS__))
#define rankwise_barrier(...) (RANKWISE_HERE_, rankwise_barrier(__VA_ARGS__))
#define rankwise_broadcast(...) (RANKWISE_HERE_, rankwise_broadcast(__VA_ARGS__))
#define rankwise_all_reduce(...) (RANKWISE_HERE_, rankwise_all_reduce(__VA_ARGS__))
#define rankwise_reduce(...) (RANKWISE_HERE_, rankwise_reduce(__VA_ARGS__))
#define rankwise_all_gather(...) (RANKWISE_HERE_, rankwise_all_gather(__VA_ARGS__))
#define rankwise_gather(...) (RANKWISE_HERE_, rankwise_gather(__VA_ARGS__))
#define rankwise_scatter(...) (RANKWISE_HERE_, rankwise_scatter(__VA_ARGS__))
#define rankwise_reduce_scatter(...) (RANKWISE_HERE_, rankwise_reduce_scatter(__VA_ARGS__))
#define rankwise_all_to_all(...) (RANKWISE_HERE_, rankwise_all_to_all(__VA_ARGS__))
#define rankwise_all_gather_v(...) (RANKWISE_HERE_, rankwise_all_gather_v(__VA_ARGS__))
#define rankwise_gather_v(...) (RANKWISE_HERE_, rankwise_gather_v(__VA_ARGS__))
#define rankwise_scatter_v(...) (RANKWISE_HERE_, rankwise_scatter_v(__VA_ARGS__))
#define rankwise_reduce_scatter_v(...) (RANKWISE_HERE_, rankwise_reduce_scatter_v(__VA_ARGS__))
#define rankwise_all_to_all_v(...) (RANKWISE_HERE_, rankwise_all_to_all_v(__VA_ARGS__))
#define rankwise_send(...) (RANKWISE_HERE_, rankwise_send(__VA_ARGS__))
#define rankwise_recv(...) (RANKWISE_HERE_, rankwise_recv(__VA_ARGS__))
#define rankwise_recv_up_to(...) (RANKWISE_HERE_, rankwise_recv_up_to(__VA_ARGS__))
#define rankwise_isend(...) (RANKWISE_HERE_, rankwise_isend(__VA_ARGS__))
#define rankwise_irecv(...) (RANKWISE_HERE_, rankwise_irecv(__VA_ARGS__))
#define rankwise_wait(...) (RANKWISE_HERE_, rankwise_wait(__VA_ARGS__))
#define rankwise_test(...) (RANKWISE_HERE_, rankwise_test(__VA_ARGS__))
#define rankwise_sync(...) (RANKWISE_HERE_, rankwise_sync(__VA_ARGS__))
#define rankwise_shrink(...) (RANKWISE_HERE_, rankwise_shrink(__VA_ARGS__))
#define rankwise_agree(...) (RANKWISE_HERE_, rankwise_agree(__VA_ARGS__))
#endif

#endif
