/* Calls of the C API as a C program makes them. */
#ifndef CAPI_CALLS_H
#define CAPI_CALLS_H
#include <rankwise.h>

#ifdef __cplusplus
extern "C" {
#endif
/* Every collective and every kind of message; returns the line of the first wrong result, or 0. */
int capi_collectives(rankwise_comm comm);
int capi_messages(rankwise_comm comm);
/* Bad arguments; returns likewise. */
int capi_refusals(rankwise_comm comm);
/* An all_reduce of this many elements; returns its status. */
int capi_reduce(rankwise_comm comm, uint64_t count);
#ifdef __cplusplus
}
#endif
#endif
