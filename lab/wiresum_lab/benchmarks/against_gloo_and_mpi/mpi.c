/* One rank of the benchmark, for MPI: the same commands over the same Unix socket as rank.py, the same tensors as
 * pattern.py. The benchmark of precision has tensors of its own, in files: `load` reads this rank's, and `store` writes
 * the sum beside it. Waiting for a command blocks, so that a rank that is not being measured takes no
 * processor time from one that is. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { kTableElements = 65521, kValueMax = 3, kRepetitionStride = 7919 };

static int rank, size;
static float own[kTableElements], expected[kTableElements];
static float *source, *result;
static long elements;
static long repetition;

static void fail(const char *what) {
  fprintf(stderr, "allreduce_mpi: rank %d: %s\n", rank, what);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static int64_t now_ns(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static float table_value(uint32_t of_rank, uint32_t index) {
  uint32_t hashed = (index * 2654435761u + of_rank * 40503u) ^ 0x9E3779B9u;
  hashed = (hashed * 2246822519u) >> 16;
  return (float)(hashed % (2 * kValueMax + 1)) - kValueMax;
}

static void make_tables(void) {
  for (uint32_t i = 0; i < kTableElements; ++i) {
    own[i] = table_value((uint32_t)rank, i);
    for (int r = 0; r < size; ++r) expected[i] += table_value((uint32_t)r, i);
  }
}

static void make_room(long new_elements) {
  if (new_elements == elements) return;
  elements = new_elements;
  source = realloc(source, (size_t)elements * sizeof *source);
  result = realloc(result, (size_t)elements * sizeof *result);
  if (source == NULL || result == NULL) fail("out of memory");
}

/* FOLDER/RANK.NAME */
static FILE *file_of(const char *folder, const char *name, const char *mode) {
  char path[512];
  snprintf(path, sizeof path, "%s/%d.%s", folder, rank, name);
  FILE *file = fopen(path, mode);
  if (file == NULL) fail("cannot open a tensor's file");
  return file;
}

static void load(const char *folder, long new_elements) {
  make_room(new_elements);
  FILE *file = file_of(folder, "tensor", "rb");
  if (fread(source, sizeof *source, (size_t)elements, file) != (size_t)elements) fail("a tensor's file is too short");
  fclose(file);
  memset(result, 0, (size_t)elements * sizeof *result);
}

static void store(const char *folder) {
  FILE *file = file_of(folder, "sum", "wb");
  if (fwrite(result, sizeof *result, (size_t)elements, file) != (size_t)elements) fail("cannot write the sum");
  fclose(file);
}

static void prepare(long new_elements, long new_repetition) {
  make_room(new_elements);
  repetition = new_repetition;
  const long shift = repetition * kRepetitionStride % kTableElements;
  for (long i = 0; i < elements; ++i) source[i] = own[(i + shift) % kTableElements];
  memset(result, 0, (size_t)elements * sizeof *result); /* also touches the pages */
}

static long wrong_elements(void) {
  const long shift = repetition * kRepetitionStride % kTableElements;
  long wrong = 0;
  for (long i = 0; i < elements; ++i) wrong += result[i] != expected[(i + shift) % kTableElements];
  return wrong;
}

static void go(FILE *control) {
  const int64_t cpu_ns = now_ns(CLOCK_PROCESS_CPUTIME_ID), start_ns = now_ns(CLOCK_MONOTONIC);
  MPI_Allreduce(source, result, (int)elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  const int64_t end_ns = now_ns(CLOCK_MONOTONIC), cpu_end_ns = now_ns(CLOCK_PROCESS_CPUTIME_ID);
  fprintf(control,
          "{\"start_ns\": %lld, \"end_ns\": %lld, \"cpu_ns\": %lld, \"wrong_elements\": %ld, \"retransmissions\": -1}\n",
          (long long)start_ns, (long long)end_ns, (long long)(cpu_end_ns - cpu_ns), wrong_elements());
}

static int connect_control(const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof address.sun_path) fail("the path of the control socket is too long");
  strcpy(address.sun_path, path);
  const int descriptor = socket(AF_UNIX, SOCK_STREAM, 0);
  if (descriptor < 0 || connect(descriptor, (struct sockaddr *)&address, sizeof address) != 0)
    fail("cannot connect to the benchmark's control socket");
  return descriptor;
}

static void serve(int descriptor) {
  FILE *commands = fdopen(descriptor, "r"), *control = fdopen(dup(descriptor), "w");
  if (commands == NULL || control == NULL) fail("cannot open the control streams");
  char line[512], folder[256];
  fprintf(control, "%d\n", rank);
  fflush(control);
  while (fgets(line, sizeof line, commands) != NULL) {
    long bits, count, number;
    if (sscanf(line, "prepare %ld %ld %ld", &bits, &count, &number) == 3) {
      prepare(count, number);
      fprintf(control, "null\n");
    } else if (sscanf(line, "load %255s %ld", folder, &count) == 2) {
      load(folder, count);
      fprintf(control, "null\n");
    } else if (sscanf(line, "store %255s", folder) == 1) {
      store(folder);
      fprintf(control, "null\n");
    } else if (strcmp(line, "go\n") == 0) {
      go(control);
    } else {
      fail("the benchmark sent a command that a rank does not know");
    }
    fflush(control);
  }
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: allreduce_mpi CONTROL_SOCKET (the benchmark starts it)\n");
    return 2;
  }
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  make_tables();
  MPI_Barrier(MPI_COMM_WORLD); /* connections are made here, not in the first measurement */
  serve(connect_control(argv[1]));
  MPI_Finalize();
  return 0;
}
