/* Prints the median microseconds of MPI_Allreduce of 64 MiB of float, sum: for each repetition the time of the
 * slowest rank from a barrier on, the first one left out. Called by speed-allreduce.sh, as the anchor of the claim.
 *
 *     mpirun -n 2 mpi_allreduce REPETITIONS
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define ELEMENTS (16 << 20)
#define MAX_REPETITIONS 1000

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    double times[MAX_REPETITIONS], slowest[MAX_BYTES];
    int rank, repetitions = argc > 1 ? atoi(argv[1]) : 10;
    if (repetitions < 1 || repetitions > MAX_REPETITIONS) return 2;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    float *send = malloc(sizeof(float) * ELEMENTS), *recv = malloc(sizeof(float) * ELEMENTS);
    if (!send || !recv) MPI_Abort(MPI_COMM_WORLD, 1);
    for (int i = 0; i < ELEMENTS; i++) send[i] = (float)(i % 7), recv[i] = 0;
    for (int round = -1; round < repetitions; round++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = MPI_Wtime();
        MPI_Allreduce(send, recv, ELEMENTS, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (round >= 0) times[round] = MPI_Wtime() - begin;
    }
    MPI_Reduce(times, slowest, repetitions, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        qsort(slowest, repetitions, sizeof(double), ascending);
        printf("%.1f\n", slowest[repetitions / 2] * 1e6);
    }
    MPI_Finalize();
    return 0;
}
