/* Heat in a rod whose cells are divided over the ranks: each step exchanges the outer cells with the neighbours.
 *
 *   cc -O2 heat.c -o heat $(pkg-config --cflags --libs rankwise)       (docs/how-to/compiled.md)
 *   rankwise run -n 4 -- ./heat
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <rankwise.h>

enum { CELLS = 1000, STEPS = 2000, LEFT = 0, RIGHT = 1 }; /* cells of each rank; tags: the direction of a message */

/* Fill cells[0] and cells[CELLS + 1] with the neighbours' outer cells. */
static void exchange(rankwise_comm comm, double* cells) {
    const int rank = rankwise_rank(comm), last = rankwise_world_size(comm) - 1;
    rankwise_request sends[2] = {NULL, NULL};
    if (rank > 0) rankwise_check(rankwise_isend(comm, &cells[1], 1, RANKWISE_F64, rank - 1, LEFT, &sends[0]));
    if (rank < last) rankwise_check(rankwise_isend(comm, &cells[CELLS], 1, RANKWISE_F64, rank + 1, RIGHT, &sends[1]));
    if (rank > 0) rankwise_check(rankwise_recv(comm, &cells[0], 1, RANKWISE_F64, rank - 1, RIGHT, NULL));
    if (rank < last) rankwise_check(rankwise_recv(comm, &cells[CELLS + 1], 1, RANKWISE_F64, rank + 1, LEFT, NULL));
    for (int i = 0; i < 2; ++i) rankwise_check(rankwise_wait(&sends[i], -1, NULL));
}

int main(void) {
    rankwise_comm comm;
    rankwise_check(rankwise_init(&comm));
    double* cells = calloc(CELLS + 2, sizeof *cells);
    double* next = calloc(CELLS + 2, sizeof *next);
    if (rankwise_rank(comm) == 0) cells[0] = next[0] = 100; /* the rod is heated at its left end */
    double change = 0;
    for (int step = 0; step < STEPS; ++step) {
        exchange(comm, cells);
        change = 0;
        for (int i = 1; i <= CELLS; ++i) {
            next[i] = cells[i] + 0.25 * (cells[i - 1] - 2 * cells[i] + cells[i + 1]);
            change = fmax(change, fabs(next[i] - cells[i]));
        }
        double* swap = cells;
        cells = next, next = swap;
    }
    double heat = 0;
    for (int i = 1; i <= CELLS; ++i) heat += cells[i];
    rankwise_check(rankwise_all_reduce(comm, &heat, 1, RANKWISE_F64, RANKWISE_SUM));
    rankwise_check(rankwise_all_reduce(comm, &change, 1, RANKWISE_F64, RANKWISE_MAX));
    if (rankwise_rank(comm) == 0) printf("heat %.10f, largest change in the last step %.3e\n", heat, change);
    free(cells), free(next);
    rankwise_check(rankwise_close(&comm, 1));
    return 0;
}
