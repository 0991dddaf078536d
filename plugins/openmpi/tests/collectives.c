/* Collectives under mpirun, for test_openmpi.py. Each process checks each result element by element. The component
 * prints how many went through the network (coll_wiresum_verbose), and the test compares that.
 *
 *     mpirun -np 3 collectives SCENARIO
 */
#define _DEFAULT_SOURCE /* usleep */
#include <math.h>
#include <mpi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ELEMENTS = 20000 }; /* 80 kB: over the component's threshold */

static int rank, size;

static void expect(int is_so, const char* what, int line) {
  if (is_so) return;
  fprintf(stderr, "rank %d, line %d: not so: %s\n", rank, line, what);
  MPI_Abort(MPI_COMM_WORLD, 1);
}
#define EXPECT(condition) expect((condition), #condition, __LINE__)

static int everybody(void) { return size * (size + 1) / 2; }

static void fill(int32_t* values, int elements, int factor) {
  for (int i = 0; i < elements; ++i) values[i] = (i % 1000 + 1) * factor;
}

static int is_filled(const int32_t* values, int elements, int factor) {
  for (int i = 0; i < elements; ++i) {
    if (values[i] != (i % 1000 + 1) * factor) return 0;
  }
  return 1;
}

static void sum_all(MPI_Comm communicator) {
  static int32_t values[ELEMENTS];
  int own, many, total = 0;
  MPI_Comm_rank(communicator, &own);
  MPI_Comm_size(communicator, &many);
  for (int i = 1; i <= many; ++i) total += i;
  fill(values, ELEMENTS, own + 1);
  MPI_Allreduce(MPI_IN_PLACE, values, ELEMENTS, MPI_INT, MPI_SUM, communicator);
  EXPECT(is_filled(values, ELEMENTS, total));
}

/* 18 through the network: 9 blocking, 9 not. */
static void everything(int nonblocking) {
  static int32_t source[32 * ELEMENTS], result[32 * ELEMENTS];
  static float floats[ELEMENTS], sums[ELEMENTS];
  MPI_Request request = MPI_REQUEST_NULL;
  const int root = size - 1;
#define DO(blocking, call)                   \
  do {                                       \
    if (nonblocking) {                       \
      call;                                  \
      MPI_Wait(&request, MPI_STATUS_IGNORE); \
    } else {                                 \
      blocking;                              \
    }                                        \
  } while (0)

  fill(source, ELEMENTS, rank + 1);
  DO(MPI_Allreduce(source, result, ELEMENTS, MPI_INT, MPI_SUM, MPI_COMM_WORLD),
     MPI_Iallreduce(source, result, ELEMENTS, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request));
  EXPECT(is_filled(result, ELEMENTS, everybody()) && is_filled(source, ELEMENTS, rank + 1));

  for (int i = 0; i < ELEMENTS; ++i) floats[i] = (float)(i % 1000) * (float)(rank + 1);
  DO(MPI_Allreduce(floats, sums, ELEMENTS, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD),
     MPI_Iallreduce(floats, sums, ELEMENTS, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request));
  for (int i = 0; i < ELEMENTS; ++i) EXPECT(sums[i] == (float)(i % 1000 * everybody()));

  fill(source, ELEMENTS, rank + 1);
  memset(result, 0, sizeof result);
  DO(MPI_Reduce(source, result, ELEMENTS, MPI_UNSIGNED, MPI_SUM, root, MPI_COMM_WORLD),
     MPI_Ireduce(source, result, ELEMENTS, MPI_UNSIGNED, MPI_SUM, root, MPI_COMM_WORLD, &request));
  EXPECT(rank == root ? is_filled(result, ELEMENTS, everybody()) : result[0] == 0);
  if (rank == root) memcpy(result, source, ELEMENTS * sizeof *source);
  DO(MPI_Reduce(rank == root ? MPI_IN_PLACE : source, result, ELEMENTS, MPI_INT32_T, MPI_SUM, root, MPI_COMM_WORLD),
     MPI_Ireduce(rank == root ? MPI_IN_PLACE : source, result, ELEMENTS, MPI_INT32_T, MPI_SUM, root, MPI_COMM_WORLD,
                 &request));
  if (rank == root) EXPECT(is_filled(result, ELEMENTS, everybody()));

  for (int part = 0; part < size; ++part) fill(source + part * ELEMENTS, ELEMENTS, (part + 1) * (rank + 1));
  DO(MPI_Reduce_scatter_block(source, result, ELEMENTS, MPI_INT, MPI_SUM, MPI_COMM_WORLD),
     MPI_Ireduce_scatter_block(source, result, ELEMENTS, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request));
  EXPECT(is_filled(result, ELEMENTS, (rank + 1) * everybody()));
  DO(MPI_Reduce_scatter_block(MPI_IN_PLACE, source, ELEMENTS, MPI_INT, MPI_SUM, MPI_COMM_WORLD),
     MPI_Ireduce_scatter_block(MPI_IN_PLACE, source, ELEMENTS, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request));
  EXPECT(is_filled(source, ELEMENTS, (rank + 1) * everybody()));

  /* The root sends integers; the others receive them strided, into every second place of a vector. */
  MPI_Datatype strided;
  MPI_Type_vector(ELEMENTS, 1, 2, MPI_INT, &strided);
  MPI_Type_commit(&strided);
  memset(result, 0xFF, sizeof result);
  fill(source, ELEMENTS, 7);
  if (rank == root) {
    DO(MPI_Bcast(source, ELEMENTS, MPI_INT, root, MPI_COMM_WORLD),
       MPI_Ibcast(source, ELEMENTS, MPI_INT, root, MPI_COMM_WORLD, &request));
  } else {
    DO(MPI_Bcast(result, 1, strided, root, MPI_COMM_WORLD),
       MPI_Ibcast(result, 1, strided, root, MPI_COMM_WORLD, &request));
    for (int i = 0; i < ELEMENTS; ++i) EXPECT(result[2 * i] == (i % 1000 + 1) * 7 && result[2 * i + 1] == -1);
  }
  MPI_Type_free(&strided);

  fill(source, ELEMENTS, rank + 1);
  DO(MPI_Allgather(source, ELEMENTS, MPI_INT, result, ELEMENTS * 4, MPI_BYTE, MPI_COMM_WORLD),
     MPI_Iallgather(source, ELEMENTS, MPI_INT, result, ELEMENTS * 4, MPI_BYTE, MPI_COMM_WORLD, &request));
  for (int part = 0; part < size; ++part) EXPECT(is_filled(result + part * ELEMENTS, ELEMENTS, part + 1));

  memset(result, 0, sizeof result);
  fill(result + rank * ELEMENTS, ELEMENTS, rank + 1);
  DO(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, result, ELEMENTS, MPI_INT, MPI_COMM_WORLD),
     MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, result, ELEMENTS, MPI_INT, MPI_COMM_WORLD, &request));
  for (int part = 0; part < size; ++part) EXPECT(is_filled(result + part * ELEMENTS, ELEMENTS, part + 1));
}

/* `inner` where `memory` is, for MPI_BOTTOM. */
static MPI_Datatype absolute(const void* memory, MPI_Datatype inner) {
  const int one = 1;
  MPI_Aint address;
  MPI_Datatype made;
  MPI_Get_address(memory, &address);
  MPI_Type_create_hindexed(1, &one, &address, inner, &made);
  MPI_Type_commit(&made);
  return made;
}

/* Buffers that are MPI_BOTTOM, whose types have absolute addresses. 12 through the network: 6 blocking, 6 not. */
static void bottom(int nonblocking) {
  static struct {
    int32_t integers[ELEMENTS];
    char gap[60];
    double doubles[ELEMENTS];
  } mixed;
  static int32_t source[2 * ELEMENTS], result[32 * 2 * ELEMENTS];
  const int root = size - 1, lengths[2] = {ELEMENTS, ELEMENTS};
  const MPI_Datatype types[2] = {MPI_INT, MPI_DOUBLE};
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Aint places[2];
  MPI_Datatype both, run, strided;
  MPI_Get_address(mixed.integers, &places[0]);
  MPI_Get_address(mixed.doubles, &places[1]);
  MPI_Type_create_struct(2, lengths, places, types, &both);
  MPI_Type_commit(&both);
  MPI_Type_contiguous(ELEMENTS, MPI_INT, &run);
  MPI_Type_vector(ELEMENTS, 1, 2, MPI_INT, &strided);
  MPI_Datatype given_run = absolute(source, run), got_run = absolute(result, run);
  MPI_Datatype given_strided = absolute(source, strided), vector = absolute(result, strided), got_strided;
  MPI_Type_create_resized(vector, 0, 2 * ELEMENTS * (MPI_Aint)sizeof *result, &got_strided);
  MPI_Type_commit(&got_strided);

  memset(&mixed, 0, sizeof mixed);
  for (int i = 0; rank == root && i < ELEMENTS; ++i) mixed.doubles[i] = mixed.integers[i] = i;
  DO(MPI_Bcast(MPI_BOTTOM, 1, both, root, MPI_COMM_WORLD),
     MPI_Ibcast(MPI_BOTTOM, 1, both, root, MPI_COMM_WORLD, &request));
  for (int i = 0; i < ELEMENTS; ++i) EXPECT(mixed.integers[i] == i && mixed.doubles[i] == i);

  fill(source, ELEMENTS, rank == root ? 7 : 0);
  DO(MPI_Bcast(MPI_BOTTOM, 1, given_run, root, MPI_COMM_WORLD),
     MPI_Ibcast(MPI_BOTTOM, 1, given_run, root, MPI_COMM_WORLD, &request));
  EXPECT(is_filled(source, ELEMENTS, 7));

  for (int in_place = 0; in_place < 2; ++in_place) {
    fill(source, ELEMENTS, rank + 1);
    memset(result, 0xFF, sizeof result);
    for (int i = 0; in_place && i < ELEMENTS; ++i) result[2 * (rank * ELEMENTS + i)] = source[i];
    const void* given = in_place ? MPI_IN_PLACE : source;
    DO(MPI_Allgather(given, ELEMENTS, MPI_INT, MPI_BOTTOM, 1, got_strided, MPI_COMM_WORLD),
       MPI_Iallgather(given, ELEMENTS, MPI_INT, MPI_BOTTOM, 1, got_strided, MPI_COMM_WORLD, &request));
    for (int i = 0; i < size * ELEMENTS; ++i) {
      EXPECT(result[2 * i] == (i % ELEMENTS % 1000 + 1) * (i / ELEMENTS + 1) && result[2 * i + 1] == -1);
    }
  }

  for (int i = 0; i < ELEMENTS; ++i) source[2 * i] = (i % 1000 + 1) * (rank + 1);
  DO(MPI_Allgather(MPI_BOTTOM, 1, given_strided, result, ELEMENTS, MPI_INT, MPI_COMM_WORLD),
     MPI_Iallgather(MPI_BOTTOM, 1, given_strided, result, ELEMENTS, MPI_INT, MPI_COMM_WORLD, &request));
  for (int part = 0; part < size; ++part) EXPECT(is_filled(result + part * ELEMENTS, ELEMENTS, part + 1));

  fill(source, ELEMENTS, 3 * (rank + 1));
  DO(MPI_Allgather(MPI_BOTTOM, 1, given_run, MPI_BOTTOM, 1, got_run, MPI_COMM_WORLD),
     MPI_Iallgather(MPI_BOTTOM, 1, given_run, MPI_BOTTOM, 1, got_run, MPI_COMM_WORLD, &request));
  for (int part = 0; part < size; ++part) EXPECT(is_filled(result + part * ELEMENTS, ELEMENTS, 3 * (part + 1)));

  MPI_Datatype* const made[] = {&both, &run, &strided, &given_run, &got_run, &given_strided, &vector, &got_strided};
  for (size_t i = 0; i < sizeof made / sizeof *made; ++i) MPI_Type_free(made[i]);
}

/* The component supports none of these, so they go to Open MPI's own components. */
static void below(void) {
  static double doubles[ELEMENTS];
  static int32_t values[ELEMENTS];
  double one = 1;
  int32_t few = rank + 1;
  for (int i = 0; i < ELEMENTS; ++i) doubles[i] = 0.1;
  MPI_Allreduce(MPI_IN_PLACE, doubles, ELEMENTS, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  EXPECT(doubles[0] > 0.0999 * size && doubles[0] < 0.1001 * size);
  fill(values, ELEMENTS, rank + 1);
  MPI_Allreduce(MPI_IN_PLACE, values, ELEMENTS, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  EXPECT(is_filled(values, ELEMENTS, size));
  MPI_Allreduce(MPI_IN_PLACE, &few, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  EXPECT(few == everybody());
  MPI_Allreduce(MPI_IN_PLACE, &one, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  EXPECT(one == size);
  sum_all(MPI_COMM_SELF);
  MPI_Barrier(MPI_COMM_WORLD);
  /* A nonblocking collective does not make a communicator join. */
  MPI_Request request;
  fill(values, ELEMENTS, rank + 1);
  MPI_Iallreduce(MPI_IN_PLACE, values, ELEMENTS, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  EXPECT(is_filled(values, ELEMENTS, everybody()));
}

/* Two communicators, whose nonblocking collectives each process starts in a different order; communicators of a part of
 * the processes; and a message that is sent while the others wait in a collective. */
static void communicators(void) {
  static int32_t first[ELEMENTS], second[ELEMENTS], message[1 << 20];
  MPI_Comm copy, half;
  MPI_Request requests[2];
  MPI_Comm_dup(MPI_COMM_WORLD, &copy);
  sum_all(MPI_COMM_WORLD);
  sum_all(copy);
  fill(first, ELEMENTS, rank + 1);
  fill(second, ELEMENTS, 2 * (rank + 1));
  for (int turn = 0; turn < 2; ++turn) {
    if (turn == rank % 2) {
      MPI_Iallreduce(MPI_IN_PLACE, first, ELEMENTS, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &requests[0]);
    } else {
      MPI_Iallreduce(MPI_IN_PLACE, second, ELEMENTS, MPI_INT, MPI_SUM, copy, &requests[1]);
    }
  }
  MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
  EXPECT(is_filled(first, ELEMENTS, everybody()) && is_filled(second, ELEMENTS, 2 * everybody()));
  MPI_Comm_free(&copy);

  MPI_Comm_split(MPI_COMM_WORLD, rank == 0, rank, &half); /* one process, and the rest */
  sum_all(half);
  MPI_Comm_free(&half);

  if (rank == 0) {
    MPI_Isend(message, 1 << 20, MPI_INT, 1, 0, MPI_COMM_WORLD, &requests[0]);
  } else if (rank == 1) {
    MPI_Recv(message, 1 << 20, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE); /* before it calls the sum */
  }
  sum_all(MPI_COMM_WORLD);
  if (rank == 0) MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
}

/* Collectives that are in flight when their communicator is freed complete; one process is late for them. */
static void free_in_flight(void) {
  static int32_t first[ELEMENTS], second[ELEMENTS], copied[2 * ELEMENTS];
  MPI_Comm copy;
  MPI_Request requests[4];
  MPI_Datatype strided;
  MPI_Type_vector(ELEMENTS, 1, 2, MPI_INT, &strided);
  MPI_Type_commit(&strided);
  MPI_Comm_dup(MPI_COMM_WORLD, &copy);
  sum_all(copy);
  fill(first, ELEMENTS, rank + 1);
  fill(second, ELEMENTS, 2 * (rank + 1));
  for (int i = 0; i < ELEMENTS; ++i) copied[2 * i] = rank == 0 ? i : -1;
  if (rank == size - 1) usleep(500000);
  MPI_Iallreduce(MPI_IN_PLACE, first, ELEMENTS, MPI_INT, MPI_SUM, copy, &requests[0]);
  MPI_Ibcast(copied, 1, strided, 0, copy, &requests[1]);
  MPI_Iallreduce(MPI_IN_PLACE, second, ELEMENTS, MPI_INT, MPI_SUM, copy, &requests[2]);
  MPI_Ibarrier(copy, &requests[3]);
  MPI_Comm_free(&copy);
  EXPECT(copy == MPI_COMM_NULL);
  MPI_Type_free(&strided);
  MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
  EXPECT(is_filled(first, ELEMENTS, everybody()) && is_filled(second, ELEMENTS, 2 * everybody()));
  for (int i = 0; i < ELEMENTS; ++i) EXPECT(copied[2 * i] == i && copied[2 * i + 1] == 0);
  sum_all(MPI_COMM_WORLD);
}

static double milliseconds_of_dup_sum_free(void) {
  MPI_Comm copy;
  MPI_Barrier(MPI_COMM_WORLD);
  const double begin = MPI_Wtime();
  MPI_Comm_dup(MPI_COMM_WORLD, &copy);
  sum_all(copy);
  MPI_Comm_free(&copy);
  return 1000 * (MPI_Wtime() - begin);
}

static int ascending(const void* left, const void* right) {
  const double a = *(const double*)left, b = *(const double*)right;
  return (a > b) - (a < b);
}

/* Many communicators with a sum each: one after the other, and then all at once. */
static void dups(void) {
  enum { DUPS = 20 };
  MPI_Comm copies[DUPS];
  double times[DUPS];
  sum_all(MPI_COMM_WORLD);
  for (int i = 0; i < DUPS; ++i) times[i] = milliseconds_of_dup_sum_free();
  qsort(times, DUPS, sizeof *times, ascending);
  if (rank == 0) printf("dup, sum, free: %.1f ms\n", times[DUPS / 2]);
  for (int i = 0; i < DUPS; ++i) {
    MPI_Comm_dup(MPI_COMM_WORLD, &copies[i]);
    sum_all(copies[i]);
  }
  for (int i = 0; i < DUPS; ++i) MPI_Comm_free(&copies[i]);
}

/* Pairs of processes, or less, each in a communicator of its own, at the same time. */
static void pairs(void) {
  MPI_Comm pair;
  MPI_Comm_split(MPI_COMM_WORLD, rank / 2, rank, &pair);
  sum_all(pair);
  MPI_Comm_free(&pair);
}

/* All processes but the first are in a communicator, where they sum different numbers of elements. */
static void differ(void) {
  static int32_t values[2 * ELEMENTS];
  MPI_Comm rest;
  MPI_Comm_split(MPI_COMM_WORLD, rank == 0, rank, &rest);
  if (rank != 0) {
    sum_all(rest);
    MPI_Comm_set_errhandler(rest, MPI_ERRORS_RETURN);
    EXPECT(MPI_Allreduce(MPI_IN_PLACE, values, ELEMENTS + rank, MPI_INT, MPI_SUM, rest) != MPI_SUCCESS);
  }
  MPI_Comm_free(&rest);
}

/* Sums until the communicator has joined, and two more. */
static void sums(void) {
  MPI_Request request;
  static int32_t values[ELEMENTS];
  for (int i = 0; i < 4; ++i) {
    sum_all(MPI_COMM_WORLD);
    fill(values, ELEMENTS, rank + 1);
    MPI_Iallreduce(MPI_IN_PLACE, values, ELEMENTS, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    EXPECT(is_filled(values, ELEMENTS, everybody()));
  }
}

/* An operator that does what MPI_SUM does, and that the network does not serve. */
static void add(void* in, void* inout, int* count, MPI_Datatype* type) {
  (void)type;
  for (int i = 0; i < *count; ++i) ((float*)inout)[i] += ((float*)in)[i];
}

static long differing(const float* found, const float* expected, int elements) {
  long count = 0;
  for (int i = 0; i < elements; ++i) {
    count += isnan(expected[i]) ? !isnan(found[i]) : memcmp(&found[i], &expected[i], sizeof *found) != 0;
  }
  return count;
}

/* Small floats, whose sums are exact in any order, with a few that are not like them; the same sums by Open MPI. */
static void floats(void) {
  enum { FLOATS = 100003, INFINITE = 10000, OPPOSITES = 30000, NOT_A_NUMBER = 60000, LARGE = 90000 };
  static float own[FLOATS], sum[FLOATS], expected[FLOATS];
  MPI_Op below_sum;
  MPI_Request request;
  long wrong = 0, all_wrong = 0;
  const int root = size - 1;
  MPI_Op_create(add, 1, &below_sum);
  for (int i = 0; i < FLOATS; ++i) own[i] = (float)(i % 13 + rank - 5) / 1048576;
  if (rank == 0) own[INFINITE] = own[OPPOSITES] = INFINITY;
  if (rank == 1) own[OPPOSITES] = -INFINITY;
  if (rank == 1) own[NOT_A_NUMBER] = NAN;
  if (rank == 0) own[LARGE] = 1e6f;

  MPI_Allreduce(own, expected, FLOATS, MPI_FLOAT, below_sum, MPI_COMM_WORLD);
  EXPECT(expected[INFINITE] == INFINITY && isnan(expected[OPPOSITES]) && isnan(expected[NOT_A_NUMBER]));
  EXPECT(expected[LARGE] == 1e6f && expected[LARGE + 1] != 0);
  MPI_Allreduce(own, sum, FLOATS, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  wrong += differing(sum, expected, FLOATS);
  MPI_Iallreduce(own, sum, FLOATS, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  wrong += differing(sum, expected, FLOATS);
  MPI_Reduce(own, sum, FLOATS, MPI_FLOAT, MPI_SUM, root, MPI_COMM_WORLD);
  if (rank == root) wrong += differing(sum, expected, FLOATS);
  const int part = FLOATS / size;
  MPI_Reduce_scatter_block(own, sum, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  wrong += differing(sum, expected + rank * part, part);
  MPI_Reduce(&wrong, &all_wrong, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) printf("%ld floats differ from Open MPI's\n", all_wrong);
  MPI_Op_free(&below_sum);
}

static void* sum_in_thread(void* argument) {
  MPI_Comm communicator = *(MPI_Comm*)argument;
  int32_t* values = malloc(ELEMENTS * sizeof *values);
  for (int i = 0; i < 5; ++i) {
    fill(values, ELEMENTS, rank + 1);
    MPI_Allreduce(MPI_IN_PLACE, values, ELEMENTS, MPI_INT, MPI_SUM, communicator);
    EXPECT(is_filled(values, ELEMENTS, everybody()));
    MPI_Request request;
    fill(values, ELEMENTS, rank + 1);
    MPI_Iallreduce(MPI_IN_PLACE, values, ELEMENTS, MPI_INT, MPI_SUM, communicator, &request);
    for (int done = 0; !done;) MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    EXPECT(is_filled(values, ELEMENTS, everybody()));
  }
  free(values);
  return NULL;
}

static void threads(void) {
  MPI_Comm communicators[2];
  pthread_t running[2];
  for (int i = 0; i < 2; ++i) MPI_Comm_dup(MPI_COMM_WORLD, &communicators[i]);
  for (int i = 0; i < 2; ++i) EXPECT(pthread_create(&running[i], NULL, sum_in_thread, &communicators[i]) == 0);
  for (int i = 0; i < 2; ++i) pthread_join(running[i], NULL);
  for (int i = 0; i < 2; ++i) MPI_Comm_free(&communicators[i]);
}

int main(int count, char** words) {
  const char* scenario = count == 2 ? words[1] : "everything";
  int provided = 0;
  MPI_Init_thread(&count, &words, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (strcmp(scenario, "everything") == 0) {
    below(); /* before a blocking collective has made the communicator join */
    for (int nonblocking = 0; nonblocking < 2; ++nonblocking) {
      everything(nonblocking);
      bottom(nonblocking);
    }
    MPI_Barrier(MPI_COMM_WORLD);
  } else if (strcmp(scenario, "communicators") == 0) {
    EXPECT(provided == MPI_THREAD_MULTIPLE);
    communicators();
    free_in_flight();
    threads();
  } else if (strcmp(scenario, "dups") == 0) {
    dups();
  } else if (strcmp(scenario, "pairs") == 0) {
    pairs();
  } else if (strcmp(scenario, "differ") == 0) {
    differ();
  } else if (strcmp(scenario, "sums") == 0) {
    sums();
  } else if (strcmp(scenario, "floats") == 0) {
    floats();
  } else {
    return 2;
  }
  MPI_Finalize();
  printf("rank %d is content\n", rank);
  return 0;
}
