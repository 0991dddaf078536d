/* A worker for test_libwiresum.py: `worker SCENARIO RANK WORLD_SIZE`. Each scenario checks its results and prints what
 * the test needs. It uses only the public header. */
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <wiresum/wiresum.h>

static int rank, world_size;

/* The bound for an event that must come, as in wiresum_lab/patience.py. */
static double patience_s(void) {
  const char* const factor = getenv("TEST_PATIENCE");
  return factor == NULL || atof(factor) < 1 ? 60 : 60 * atof(factor);
}
#define PATIENCE_S patience_s()

/* Until the test, or another rank by it, has come so far; it closes the pipe, or writes a byte. */
static void await_test(void) {
  char byte;
  (void)!read(0, &byte, 1);
}

static void tell_test(const char* what) {
  printf("%s\n", what);
  fflush(stdout);
}

static void say(const char* what, int code) {
  printf("%s %s %s\n", what, wiresum_code_name(code), wiresum_error_text());
  fflush(stdout);
}

static void expect(int is_so, const char* what) {
  if (is_so) return;
  fprintf(stderr, "rank %d: not so: %s (last error: %s)\n", rank, what, wiresum_error_text());
  exit(EXIT_FAILURE);
}
#define EXPECT(condition) expect(condition, #condition)

static void check(int code, const char* what) {
  if (code == WIRESUM_OK) return;
  fprintf(stderr, "rank %d: %s: %s: %s\n", rank, what, wiresum_code_name(code), wiresum_error_text());
  exit(EXIT_FAILURE);
}
#define CHECK(call) check(call, #call)

static wiresum_session* join(const char* job) {
  wiresum_session* session = NULL;
  CHECK(wiresum_join(job, rank, world_size, (const char*[]){getenv("TEST_SETTING"), NULL}, 0, 60, &session));
  return session;
}

static void finish(wiresum_operation** operation) {
  CHECK(wiresum_wait(operation, PATIENCE_S));
  EXPECT(*operation == NULL);
}

/* 1 + ... + world_size */
static int everybody(void) { return world_size * (world_size + 1) / 2; }

static void sum_integers(wiresum_session* session) {
  enum { ELEMENTS = 5000 };
  static int32_t values[ELEMENTS];
  wiresum_operation* operation;
  for (int i = 0; i < ELEMENTS; ++i) values[i] = i * (rank + 1);
  CHECK(wiresum_all_reduce(session, values, values, ELEMENTS, WIRESUM_INT32, WIRESUM_SUM, &operation));
  finish(&operation);
  for (int i = 0; i < ELEMENTS; ++i) EXPECT(values[i] == i * everybody());
}

/* Integers of 8 and 64 bits, which wrap around. */
static void sum_narrow_and_wide_integers(wiresum_session* session) {
  enum { ELEMENTS = 3001, PART = 11 };
  static uint8_t narrow[ELEMENTS];
  static uint64_t wide[ELEMENTS], part[PART];
  wiresum_operation* operation;
  for (int i = 0; i < ELEMENTS; ++i) {
    narrow[i] = (uint8_t)(i * (rank + 1));
    wide[i] = (uint64_t)(i - 15) * 0x123456789ABCDEFu * (uint64_t)(rank + 1);
  }
  CHECK(wiresum_all_reduce(session, narrow, narrow, ELEMENTS, WIRESUM_INT8, WIRESUM_SUM, &operation));
  CHECK(wiresum_reduce_scatter(session, wide, part, PART, WIRESUM_INT64, WIRESUM_SUM, NULL));
  CHECK(wiresum_reduce(session, wide, wide, ELEMENTS, WIRESUM_INT64, WIRESUM_SUM, 0, NULL));
  finish(&operation);
  const uint64_t unit = 0x123456789ABCDEFu * (uint64_t)everybody();
  for (int i = 0; i < PART; ++i) EXPECT(part[i] == (uint64_t)(rank * PART + i - 15) * unit);
  for (int i = 0; i < ELEMENTS; ++i) EXPECT(narrow[i] == (uint8_t)(i * everybody()));
  for (int i = 0; i < ELEMENTS; ++i) EXPECT(rank != 0 || wide[i] == (uint64_t)(i - 15) * unit);
}

/* ---- scenarios ---- */

static void collectives(void) {
  enum { ELEMENTS = 3001 };
  static float source[ELEMENTS], sum[ELEMENTS];
  static uint16_t halves[ELEMENTS];
  static int32_t parts[32 * 8], part[8];
  static unsigned char bytes[32 * 9];
  wiresum_operation *operation, *second;
  wiresum_session* session = join("collectives");
  EXPECT(wiresum_rank(session) == rank && wiresum_world_size(session) == world_size);

  sum_integers(session);
  sum_narrow_and_wide_integers(session);
  for (int i = 0; i < ELEMENTS; ++i) source[i] = (float)((rank + 1) * i);
  CHECK(wiresum_all_reduce(session, source, sum, ELEMENTS, WIRESUM_FLOAT32, WIRESUM_SUM, &operation));
  finish(&operation);
  for (int i = 0; i < ELEMENTS; ++i) EXPECT(sum[i] == (float)(everybody() * i));
  for (int i = 0; i < ELEMENTS; ++i) source[i] = 2.0F;
  CHECK(wiresum_all_reduce(session, source, sum, ELEMENTS, WIRESUM_FLOAT32, WIRESUM_AVERAGE, NULL));
  for (int i = 0; i < ELEMENTS; ++i) EXPECT(sum[i] > 1.999F && sum[i] < 2.001F);
  /* A type, its elements in 16 bits, and these bits for 1.0, 2.0 and 3.0. */
  static const unsigned kinds[4][5] = {{WIRESUM_FLOAT16, 1, 0x3C00, 0x4000, 0x4200},
                                       {WIRESUM_BFLOAT16, 1, 0x3F80, 0x4000, 0x4040},
                                       {WIRESUM_FLOAT8_E4M3, 2, 0x3838, 0x4040, 0x4444},
                                       {WIRESUM_FLOAT8_E5M2, 2, 0x3C3C, 0x4040, 0x4242}};
  for (const unsigned* kind = kinds[0]; kind != kinds[4]; kind += 5) {
    for (int i = 0; i < ELEMENTS; ++i) halves[i] = (uint16_t)kind[2];
    CHECK(wiresum_all_reduce(session, halves, halves, kind[1] * ELEMENTS, kind[0], WIRESUM_SUM, NULL));
    for (int i = 0; i < ELEMENTS; ++i) EXPECT(halves[i] == kind[1 + world_size]);
  }

  const int root = world_size - 1;
  for (int i = 0; i < 8; ++i) part[i] = rank + 1;
  CHECK(wiresum_reduce(session, part, rank == root ? part : NULL, 8, WIRESUM_INT32, WIRESUM_SUM, root, &operation));
  finish(&operation);
  for (int i = 0; i < 8; ++i) EXPECT(part[i] == (rank == root ? everybody() : rank + 1));

  for (int i = 0; i < 9; ++i) bytes[i] = (unsigned char)(rank == root ? 200 + i : 0);
  CHECK(wiresum_broadcast(session, bytes, 9, root, &operation));
  finish(&operation);
  for (int i = 0; i < 9; ++i) EXPECT(bytes[i] == 200 + i);

  unsigned char mine[9];
  for (int i = 0; i < 9; ++i) mine[i] = (unsigned char)(10 * rank + i);
  CHECK(wiresum_all_gather(session, mine, bytes, 9, &operation));
  for (int i = 0; i < world_size * 8; ++i) parts[i] = (rank + 1) * (i / 8 + 1);
  CHECK(wiresum_reduce_scatter(session, parts, part, 8, WIRESUM_INT32, WIRESUM_SUM, &second));
  finish(&second);
  finish(&operation);
  for (int i = 0; i < 9 * world_size; ++i) EXPECT(bytes[i] == 10 * (i / 9) + i % 9);
  for (int i = 0; i < 8; ++i) EXPECT(part[i] == everybody() * (rank + 1));
  CHECK(wiresum_reduce_scatter(session, parts, parts + 8 * rank, 8, WIRESUM_INT32, WIRESUM_SUM, NULL));
  for (int i = 0; i < 8; ++i) EXPECT(parts[8 * rank + i] == everybody() * (rank + 1));

  CHECK(wiresum_barrier(session, &operation));
  int done = 0;
  for (int tries = 0; !done && tries < 30000; ++tries) {
    CHECK(wiresum_test(&operation, &done));
    if (!done) nanosleep(&(struct timespec){0, 1000000}, NULL);
  }
  EXPECT(done && operation == NULL);

  wiresum_statistics statistics;
  CHECK(wiresum_get_statistics(session, &statistics, sizeof statistics));
  EXPECT(statistics.operations == 16 && statistics.results >= 16 && statistics.bytes_sent >= 4 * 5000);
  CHECK(wiresum_leave(&session));
  EXPECT(session == NULL);
  EXPECT(waitpid(-1, NULL, 0) == -1 && errno == ECHILD); /* the sidecar is not our child */
}

/* How often threads other than the first have gone to sleep. */
static long naps_of_others(void) {
  DIR* tasks = opendir("/proc/self/task");
  long naps = 0;
  EXPECT(tasks != NULL);
  for (struct dirent* task; (task = readdir(tasks)) != NULL;) {
    char path[300], line[300];
    if (task->d_name[0] == '.' || atoi(task->d_name) == getpid()) continue;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
    FILE* status = fopen(path, "r");
    while (status != NULL && fgets(line, sizeof line, status) != NULL) {
      long count = 0;
      if (sscanf(line, "voluntary_ctxt_switches: %ld", &count) == 1) naps += count;
    }
    if (status != NULL) fclose(status);
  }
  closedir(tasks);
  return naps;
}

/* Collectives without an operation. */
static void waits_in_the_call(void) {
  enum { SUMS = 400, FEW = 8, LONG = 200000 };
  static int32_t values[LONG];
  wiresum_session* session = join("waits-in-the-call");
  wiresum_operation* operation;

  long naps_least = FEW; /* of some sums in a row; if the other rank is late, another thread takes over */
  for (int sum = 0; sum < SUMS; sum += FEW) {
    const long naps = naps_of_others();
    for (int one = sum; one < sum + FEW; ++one) {
      for (int i = 0; i < 300; ++i) values[i] = (rank + 1) * (i + one);
      CHECK(wiresum_all_reduce(session, values, values, 300, WIRESUM_INT32, WIRESUM_SUM, NULL));
      for (int i = 0; i < 300; ++i) EXPECT(values[i] == everybody() * (i + one));
    }
    if (naps_of_others() - naps < naps_least) naps_least = naps_of_others() - naps;
  }
  EXPECT(naps_least < FEW / 2); /* no other thread carries these sums */

  /* Behind one that is in flight, and one that is too long for the caller to carry. */
  for (int i = 0; i < LONG; ++i) values[i] = (rank + 1) * i;
  int32_t one = rank + 1;
  CHECK(wiresum_all_reduce(session, values, values, LONG, WIRESUM_INT32, WIRESUM_SUM, &operation));
  CHECK(wiresum_all_reduce(session, &one, &one, 1, WIRESUM_INT32, WIRESUM_SUM, NULL));
  EXPECT(one == everybody());
  finish(&operation);
  CHECK(wiresum_barrier(session, NULL));
  CHECK(wiresum_all_reduce(session, values, values, LONG, WIRESUM_INT32, WIRESUM_SUM, NULL));
  for (int i = 0; i < LONG; ++i) EXPECT(values[i] == world_size * everybody() * i);

  if (rank == 0) {
    tell_test("summed");
    say("ended", wiresum_all_reduce(session, &one, &one, 1, WIRESUM_INT32, WIRESUM_SUM, NULL));
    EXPECT(wiresum_barrier(session, NULL) != WIRESUM_OK);
  } else {
    await_test();
    CHECK(wiresum_abort(session, "there is no more data"));
  }
  CHECK(wiresum_leave(&session));
}

static void* sum_in_thread(void* job) {
  wiresum_session* session = join(job);
  for (int i = 0; i < 20; ++i) {
    int32_t value = rank + 1;
    wiresum_operation* operation;
    CHECK(wiresum_all_reduce(session, &value, &value, 1, WIRESUM_INT32, WIRESUM_SUM, &operation));
    finish(&operation);
    EXPECT(value == everybody());
  }
  CHECK(wiresum_leave(&session));
  return NULL;
}

/* Sessions of three jobs, each in its own thread, where each thread has its own error texts. */
static void several_sessions(void) {
  static char names[3][8] = {"job-a", "job-b", "job-c"};
  pthread_t threads[3];
  EXPECT(wiresum_leave(NULL) == WIRESUM_ERROR_ARGUMENT);
  for (int i = 0; i < 3; ++i) EXPECT(pthread_create(&threads[i], NULL, sum_in_thread, names[i]) == 0);
  for (int i = 0; i < 3; ++i) pthread_join(threads[i], NULL);
  EXPECT(strstr(wiresum_error_text(), "the session is NULL") != NULL);
}

static void forked(void) {
  wiresum_session* session = join("forked");
  const pid_t child = fork();
  if (child == 0) {
    wiresum_operation* operation = NULL;
    EXPECT(wiresum_barrier(session, &operation) == WIRESUM_ERROR_FORKED);
    EXPECT(wiresum_abort(session, "it is the child") == WIRESUM_ERROR_FORKED);
    CHECK(wiresum_leave(&session));
    char own[32];
    snprintf(own, sizeof own, "child-of-%d", rank);
    rank = 0;
    world_size = 1;
    session = join(own);
    sum_integers(session);
    CHECK(wiresum_leave(&session));
    exit(EXIT_SUCCESS);
  }
  int status = -1;
  EXPECT(waitpid(child, &status, 0) == child && status == 0);
  sum_integers(session);
  CHECK(wiresum_leave(&session));
}

/* Starts a sum in which the others do not take part before the test, or they, have ended this worker's job. */
static void wait_for_the_end(wiresum_session* session) {
  int32_t values[3] = {1, 1, 1}; /* as many words as one integer of 64 bits */
  wiresum_operation* operation = NULL;
  tell_test("waiting");
  int code = WIRESUM_OK;
  /* The first call may still complete: the other rank's packets from before its end are at the switch. */
  for (int tries = 0; code == WIRESUM_OK && tries < 2; ++tries) {
    code = wiresum_all_reduce(session, values, values, 3, WIRESUM_INT32, WIRESUM_SUM, &operation);
    if (code == WIRESUM_OK) code = wiresum_wait(&operation, PATIENCE_S);
  }
  EXPECT(code != WIRESUM_OK && code != WIRESUM_IN_FLIGHT && operation == NULL);
  say("ended", code);
  /* The first failure is the cause, and later calls report it too. */
  EXPECT(wiresum_barrier(session, &operation) == code);
  CHECK(wiresum_leave(&session));
}

/* Ranks other than 0 end in the given way once rank 0 waits. */
static void go(const char* way) {
  wiresum_session* session = join(way);
  sum_integers(session);
  if (rank == 0) {
    wait_for_the_end(session);
    return;
  }
  await_test();
  if (strcmp(way, "exits") == 0) {
    exit(EXIT_SUCCESS);
  } else if (strcmp(way, "crashes") == 0) {
    if (fork() == 0) { /* the child keeps what it inherited until the test has seen the end */
      fclose(stdout);
      await_test();
      _exit(EXIT_SUCCESS);
    }
    abort();
  } else if (strcmp(way, "leaves") == 0) {
    CHECK(wiresum_leave(&session));
  } else if (strcmp(way, "diverges") == 0 || strcmp(way, "widths-diverge") == 0) {
    float values[3] = {1, 1, 1};
    int64_t wide = 1;
    wiresum_operation* operation;
    CHECK(strcmp(way, "diverges") == 0
              ? wiresum_all_reduce(session, values, values, 3, WIRESUM_FLOAT32, WIRESUM_SUM, &operation)
              : wiresum_all_reduce(session, &wide, &wide, 1, WIRESUM_INT64, WIRESUM_SUM, &operation));
    EXPECT(wiresum_wait(&operation, PATIENCE_S) != WIRESUM_OK);
    wiresum_leave(&session);
  } else {
    wait_for_the_end(session);
  }
}

/* Rank 0 alone calls: it leaves one session, and has waited long enough in another one. */
static void calls_alone(void) {
  wiresum_session *first = join("calls-alone"), *second = join("calls-alone-too");
  wiresum_operation* operation;
  int32_t value = 1;
  sum_integers(first);
  sum_integers(second);
  if (rank == 0) {
    CHECK(wiresum_all_reduce(first, &value, &value, 1, WIRESUM_INT32, WIRESUM_SUM, &operation));
    EXPECT(wiresum_wait(&operation, 0.01) == WIRESUM_IN_FLIGHT && operation != NULL);
    CHECK(wiresum_leave(&first));
    say("ended", wiresum_wait(&operation, PATIENCE_S));
    EXPECT(operation == NULL);
    CHECK(wiresum_set_timeout(second, 0.3));
    CHECK(wiresum_all_reduce(second, &value, &value, 1, WIRESUM_INT32, WIRESUM_SUM, &operation));
    say("ended", wiresum_wait(&operation, PATIENCE_S));
  } else {
    await_test();
    CHECK(wiresum_leave(&first));
  }
  CHECK(wiresum_leave(&second));
}

/* The switch is lost before each sum but the first, or while it is under way. */
static void goes_on(void) {
  wiresum_session* session = join("goes-on");
  for (int sums = 0; sums < 3; ++sums) {
    sum_integers(session);
    tell_test("summed");
    await_test();
  }
  CHECK(wiresum_leave(&session));
}

static void arguments(void) {
  const char* odd[] = {"LANES=3", NULL};
  const char* wrong[] = {"WIRESUM_LANES=many", NULL};
  wiresum_session* session = NULL;
  wiresum_operation* operation = NULL;
  int32_t value = 0;
  int done = 0;
  wiresum_statistics statistics;
  EXPECT(wiresum_join(NULL, 0, 1, NULL, 0, 60, &session) == WIRESUM_ERROR_ARGUMENT);
  EXPECT(strstr(wiresum_error_text(), "set WIRESUM_JOB") != NULL);
  EXPECT(wiresum_join("a", 1, 1, NULL, 0, 60, &session) == WIRESUM_ERROR_ARGUMENT);
  EXPECT(wiresum_join("a", 0, 4097, NULL, 0, 60, &session) == WIRESUM_ERROR_ARGUMENT);
  EXPECT(wiresum_join("a", 0, 1, NULL, 4, 60, &session) == WIRESUM_ERROR_ARGUMENT);
  EXPECT(wiresum_join("a", 0, 1, NULL, 0, WIRESUM_FOREVER, &session) == WIRESUM_ERROR_ARGUMENT);
  EXPECT(wiresum_join("a", 0, 1, NULL, 0, 86401, &session) == WIRESUM_ERROR_ARGUMENT);
  EXPECT(wiresum_join("a", 0, 1, odd, 0, 60, &session) == WIRESUM_ERROR_ARGUMENT);
  EXPECT(wiresum_join("a", 0, 1, NULL, 0, 60, NULL) == WIRESUM_ERROR_ARGUMENT);
  EXPECT(wiresum_join("a", 0, 1, wrong, 0, 60, &session) == WIRESUM_ERROR_ARGUMENT);
  EXPECT(strstr(wiresum_error_text(), "WIRESUM_LANES") != NULL);
  EXPECT(session == NULL && wiresum_rank(session) == -1);
  EXPECT(wiresum_barrier(NULL, &operation) == WIRESUM_ERROR_ARGUMENT);
  EXPECT(wiresum_wait(&operation, 1) == WIRESUM_ERROR_ARGUMENT);
  EXPECT(wiresum_test(&operation, &done) == WIRESUM_ERROR_ARGUMENT);

  const char* settings[] = {"WIRESUM_LANES=64", "WIRESUM_THREADS=2", NULL};
  world_size = 1;
  CHECK(wiresum_join("arguments", 0, 1, settings, WIRESUM_NO_QUEUE, 60, &session));
  sum_integers(session);
  CHECK(wiresum_get_statistics(session, &statistics, sizeof statistics));
  EXPECT(statistics.results >= 5000 / 64);
  uint64_t first = 0;
  CHECK(wiresum_get_statistics(session, (wiresum_statistics*)(void*)&first, sizeof first));
  EXPECT(first == statistics.packets_sent);
  EXPECT(wiresum_all_reduce(session, &value, &value, 1, (wiresum_dtype)9, WIRESUM_SUM, &operation) ==
         WIRESUM_ERROR_ARGUMENT);
  EXPECT(wiresum_all_reduce(session, &value, &value, 1, WIRESUM_INT32, WIRESUM_AVERAGE, &operation) ==
         WIRESUM_ERROR_ARGUMENT);
  EXPECT(wiresum_broadcast(session, &value, 4, 1, &operation) == WIRESUM_ERROR_ARGUMENT);
  /* None of these calls has damaged the session. */
  sum_integers(session);
  CHECK(wiresum_leave(&session));
}

static void is_null(int code) {
  EXPECT(code == WIRESUM_ERROR_ARGUMENT && strstr(wiresum_error_text(), "is a null pointer") != NULL);
}

/* NULL in every place where memory is read or written, at a root and at another worker. */
static void null_pointers(void) {
  static int32_t memory[10000];
  wiresum_session* session = join("null-pointers");
  wiresum_operation* operation = NULL;
  for (size_t n = 1; n <= 5000; n += 4999) {
    for (int root = 0; root < world_size; ++root) {
      is_null(wiresum_reduce(session, NULL, memory, n, WIRESUM_INT32, WIRESUM_SUM, root, &operation));
      if (rank == root) {
        is_null(wiresum_reduce(session, memory, NULL, n, WIRESUM_INT32, WIRESUM_SUM, root, &operation));
      }
      is_null(wiresum_broadcast(session, NULL, n, root, &operation));
      is_null(wiresum_broadcast(session, NULL, n, root, NULL));
    }
    for (wiresum_dtype dtype = WIRESUM_FLOAT32; dtype <= WIRESUM_INT64; ++dtype) {
      is_null(wiresum_all_reduce(session, NULL, NULL, n, dtype, WIRESUM_SUM, &operation));
      is_null(wiresum_all_reduce(session, NULL, memory, n, dtype, WIRESUM_SUM, &operation));
      is_null(wiresum_all_reduce(session, memory, NULL, n, dtype, WIRESUM_SUM, NULL));
      is_null(wiresum_reduce_scatter(session, NULL, memory, n, dtype, WIRESUM_SUM, &operation));
      is_null(wiresum_reduce_scatter(session, memory, NULL, n, dtype, WIRESUM_SUM, &operation));
      is_null(wiresum_reduce_scatter(session, NULL, NULL, n, dtype, WIRESUM_SUM, &operation));
    }
    is_null(wiresum_all_gather(session, NULL, memory, n, &operation));
    is_null(wiresum_all_gather(session, memory, NULL, n, &operation));
    is_null(wiresum_all_gather(session, NULL, NULL, n, NULL));
  }
  EXPECT(operation == NULL);
  CHECK(wiresum_all_reduce(session, NULL, NULL, 0, WIRESUM_FLOAT32, WIRESUM_SUM, NULL));
  CHECK(wiresum_reduce(session, NULL, NULL, 0, WIRESUM_FLOAT32, WIRESUM_SUM, 0, NULL));
  CHECK(wiresum_broadcast(session, NULL, 0, 0, NULL));
  CHECK(wiresum_all_gather(session, NULL, NULL, 0, NULL));
  CHECK(wiresum_reduce_scatter(session, NULL, NULL, 0, WIRESUM_INT32, WIRESUM_SUM, NULL));
  sum_integers(session);
  CHECK(wiresum_leave(&session));
}

/* A text that is cut ends after a whole character. */
static void long_texts(void) {
  static char job[6002];
  for (int shift = 0; shift < 2; ++shift) {
    wiresum_session* session = NULL;
    memset(job, 'x', (size_t)shift);
    for (int i = 0; i < 3000; ++i) memcpy(job + shift + 2 * i, "\xC3\xA9", 2); /* e with an acute accent */
    EXPECT(wiresum_join(job, 0, 1, NULL, WIRESUM_NO_QUEUE, 60, &session) == WIRESUM_ERROR_ARGUMENT);
    const char* const text = wiresum_error_text();
    const size_t length = strlen(text);
    EXPECT(length < WIRESUM_ERROR_TEXT_BYTES_MAX && length > WIRESUM_ERROR_TEXT_BYTES_MAX - 3);
    EXPECT(strcmp(text + length - 6, " [...]") == 0 && (text[length - 7] & 0xFF) == 0xA9);
  }
}

/* Every way in which the two buffers of a call may lie. It needs two workers, which ask for the same. */
static void overlaps(void) {
  enum { ELEMENTS = 1000 };
  static int32_t memory[4 * ELEMENTS];
  wiresum_session* session = join("overlaps");
  wiresum_operation* operation = NULL;
  EXPECT(world_size == 2);

  for (int shift = -ELEMENTS; shift <= ELEMENTS; shift += ELEMENTS / 2) {
    int32_t* source = memory + ELEMENTS;
    for (int i = 0; i < ELEMENTS; ++i) source[i] = i * (rank + 1);
    const int code =
        wiresum_all_reduce(session, source, source + shift, ELEMENTS, WIRESUM_INT32, WIRESUM_SUM, &operation);
    const int may = shift % ELEMENTS == 0;
    EXPECT((code == WIRESUM_OK) == may);
    if (!may) {
      EXPECT(code == WIRESUM_ERROR_ARGUMENT && strstr(wiresum_error_text(), "source and destination overlap") != NULL);
      continue;
    }
    finish(&operation);
    for (int i = 0; i < ELEMENTS; ++i) EXPECT(source[shift + i] == i * everybody());
  }
  /* By a byte. */
  EXPECT(wiresum_all_reduce(session, memory, (char*)memory + 4 * ELEMENTS - 1, ELEMENTS, WIRESUM_INT32, WIRESUM_SUM,
                            &operation) == WIRESUM_ERROR_ARGUMENT);
  /* Bytes count, not elements. */
  EXPECT(wiresum_all_reduce(session, memory, memory + ELEMENTS / 2, ELEMENTS, WIRESUM_FLOAT16, WIRESUM_SUM,
                            &operation) == WIRESUM_OK);
  finish(&operation);

  /* The root alone writes. */
  if (rank == 0) {
    EXPECT(wiresum_reduce(session, memory, memory + 1, ELEMENTS, WIRESUM_INT32, WIRESUM_SUM, 0, &operation) ==
           WIRESUM_ERROR_ARGUMENT);
  }
  CHECK(wiresum_reduce(session, memory, memory + rank, ELEMENTS, WIRESUM_INT32, WIRESUM_SUM, 0, &operation));
  finish(&operation);

  /* The other's part is not one's own. */
  for (int part = 0; part < 2; ++part) {
    for (int shift = -1; shift <= 1; ++shift) {
      int32_t* const inside = memory + ELEMENTS + part * ELEMENTS + shift;
      if (part == rank && shift == 0) continue;
      EXPECT(wiresum_all_gather(session, inside, memory + ELEMENTS, 4 * ELEMENTS, &operation) ==
             WIRESUM_ERROR_ARGUMENT);
      EXPECT(wiresum_reduce_scatter(session, memory + ELEMENTS, inside, ELEMENTS, WIRESUM_INT32, WIRESUM_SUM,
                                    &operation) == WIRESUM_ERROR_ARGUMENT);
    }
  }
  /* What ends where the other begins does not overlap. */
  int32_t* const beside = rank == 0 ? memory : memory + 3 * ELEMENTS;
  for (int i = 0; i < ELEMENTS; ++i) beside[i] = rank + 1;
  CHECK(wiresum_all_gather(session, beside, memory + ELEMENTS, 4 * ELEMENTS, &operation));
  finish(&operation);
  for (int i = 0; i < 2 * ELEMENTS; ++i) EXPECT(memory[ELEMENTS + i] == i / ELEMENTS + 1);
  CHECK(wiresum_reduce_scatter(session, memory + ELEMENTS, beside, ELEMENTS, WIRESUM_INT32, WIRESUM_SUM, &operation));
  finish(&operation);
  for (int i = 0; i < ELEMENTS; ++i) EXPECT(beside[i] == 2 * (rank + 1));
  CHECK(wiresum_leave(&session));
}

static uint64_t results_of_a_sum(const char* job) {
  wiresum_statistics statistics;
  wiresum_session* session = join(job);
  sum_integers(session);
  CHECK(wiresum_get_statistics(session, &statistics, sizeof statistics));
  CHECK(wiresum_leave(&session));
  return statistics.results;
}

/* The environment is changed after the first session. */
static void settings_change(void) {
  wiresum_session* session = NULL;
  const uint64_t few = results_of_a_sum("before");
  EXPECT(setenv("WIRESUM_LANES", "64", 1) == 0);
  const uint64_t many = results_of_a_sum("after");
  EXPECT(many >= 5000 / 64 && many > few);
  EXPECT(unsetenv("WIRESUM_LANES") == 0);
  EXPECT(results_of_a_sum("as-before") == few);

  EXPECT(setenv("WIRESUM_LANES", "many", 1) == 0);
  EXPECT(wiresum_join("a", 0, 1, NULL, 0, 60, &session) == WIRESUM_ERROR_ARGUMENT);
  EXPECT(strstr(wiresum_error_text(), "WIRESUM_LANES='many'") != NULL);
  EXPECT(unsetenv("WIRESUM_LANES") == 0);

  /* The one that cannot be changed. */
  const char* python[] = {"WIRESUM_PYTHON=/bin/false", NULL};
  EXPECT(wiresum_join("a", 0, 1, python, 0, 60, &session) == WIRESUM_ERROR_ARGUMENT);
  EXPECT(strstr(wiresum_error_text(), "set WIRESUM_PYTHON before the first session") != NULL);
  EXPECT(setenv("WIRESUM_PYTHON", "/bin/false", 1) == 0);
  EXPECT(wiresum_join("a", 0, 1, NULL, 0, 60, &session) == WIRESUM_ERROR_ARGUMENT);
  EXPECT(unsetenv("WIRESUM_PYTHON") == 0);
  EXPECT(results_of_a_sum("still") == few);
}

static void is_refused(const char* job, const char* setting, const char* says) {
  const char* settings[] = {setting, NULL};
  wiresum_session* session = NULL;
  EXPECT(wiresum_join(job, 0, 1, settings, WIRESUM_NO_QUEUE, 60, &session) != WIRESUM_OK && session == NULL);
  if (strstr(wiresum_error_text(), says) != NULL) return;
  fprintf(stderr, "for the name '%s' and the setting '%s' there is no '%s' in: %s\n", job, setting, says,
          wiresum_error_text());
  exit(EXIT_FAILURE);
}

static void bad_names(void) {
  static char endless[600000];
  memset(endless, 'x', sizeof endless - 1);
  is_refused("a", "WIRESUM_Lanes=3", "WIRESUM_Lanes is no setting: is WIRESUM_LANES meant?");
  is_refused("a", "WIRESUM_FAVOURITE=3", "WIRESUM_FAVOURITE is no setting");
  is_refused("a", "WIRESUM_=3", "WIRESUM_ is no setting");
  is_refused("a", "WIRESUM_SIMD=scalar", "WIRESUM_SIMD is for the environment");
  is_refused("a", "WIRESUM_TENANT=\xff", "WIRESUM_TENANT (tenant) is ");
  is_refused("a", "WIRESUM_SWITCH=nowhere.invalid", "cannot resolve the switch's address 'nowhere.invalid:43487'");
  is_refused("a", "WIRESUM_SWITCH=a..b", "cannot resolve the switch's address 'a..b:43487'");
  is_refused("two words", "WIRESUM_LANES=64", "the job's name, 'two words', must be letters, digits");
  is_refused("\xff", "WIRESUM_LANES=64", "the job's name, ");
  is_refused(endless, "WIRESUM_LANES=64", "they may have 524288 bytes");
  (void)results_of_a_sum("good-name");
}

static void fails_to_join(void) {
  wiresum_session* session = NULL;
  const double seconds = world_size == 1 ? 0.2 : PATIENCE_S; /* alone, it waits for no other worker */
  say("failed", wiresum_join("fails-to-join", rank, world_size, NULL, WIRESUM_NO_QUEUE, seconds, &session));
  EXPECT(session == NULL);
}

static void* join_in_vain(void* unused) {
  wiresum_session* session = NULL;
  (void)wiresum_join("never", rank, world_size, NULL, 0, 60, &session);
  return unused;
}

/* While a thread joins, whose interpreter does not begin; it says so by making the file `started`. */
static void forks_while_joining(void) {
  pthread_t thread;
  EXPECT(pthread_create(&thread, NULL, join_in_vain, NULL) == 0);
  while (access("started", F_OK) != 0) nanosleep(&(struct timespec){0, 1000000}, NULL);
  const pid_t child = fork();
  if (child == 0) _exit(0);
  int status = -1;
  EXPECT(waitpid(child, &status, 0) == child && status == 0);
  _exit(0);
}

/* The job's name is taken from the environment. */
static void unnamed(void) {
  wiresum_session* session = NULL;
  say("failed", wiresum_join(NULL, rank, world_size, NULL, 0, 60, &session));
}

int main(int count, char** words) {
  if (count != 4) return 2;
  const char* scenario = words[1];
  rank = atoi(words[2]);
  world_size = atoi(words[3]);
  if (strcmp(scenario, "collectives") == 0) {
    collectives();
  } else if (strcmp(scenario, "waits-in-the-call") == 0) {
    waits_in_the_call();
  } else if (strcmp(scenario, "several-sessions") == 0) {
    several_sessions();
  } else if (strcmp(scenario, "forked") == 0) {
    forked();
  } else if (strcmp(scenario, "calls-alone") == 0) {
    calls_alone();
  } else if (strcmp(scenario, "goes-on") == 0) {
    goes_on();
  } else if (strcmp(scenario, "arguments") == 0) {
    arguments();
  } else if (strcmp(scenario, "overlaps") == 0) {
    overlaps();
  } else if (strcmp(scenario, "null-pointers") == 0) {
    null_pointers();
  } else if (strcmp(scenario, "long-texts") == 0) {
    long_texts();
  } else if (strcmp(scenario, "settings-change") == 0) {
    settings_change();
  } else if (strcmp(scenario, "bad-names") == 0) {
    bad_names();
  } else if (strcmp(scenario, "fails-to-join") == 0) {
    fails_to_join();
  } else if (strcmp(scenario, "forks-while-joining") == 0) {
    forks_while_joining();
  } else if (strcmp(scenario, "unnamed") == 0) {
    unnamed();
  } else {
    go(scenario);
  }
  return EXIT_SUCCESS;
}
