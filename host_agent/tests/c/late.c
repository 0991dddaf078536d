/* Calls when C++ objects are gone, for test_libwiresum.py: `late WHERE [RANK WORLD_SIZE]`. It uses only the public
 * header, and is linked as C: exit handlers and destructors of threads run after those of C++ objects in the library.
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wiresum/wiresum.h>

enum { ELEMENTS = 5000 };

static int rank, world_size;
static wiresum_session* session;

/* Not exit(): that may be running. */
static void expect(int is_so, const char* what) {
  if (is_so) return;
  fprintf(stderr, "rank %d: not so: %s (last error: %s)\n", rank, what, wiresum_error_text());
  _exit(EXIT_FAILURE);
}
#define EXPECT(condition) expect(condition, #condition)

/* Would find, or take, memory that the library has freed already or still uses. */
static void stir_memory(void) {
  void* blocks[200];
  for (size_t i = 0; i < 200; ++i) {
    blocks[i] = malloc(24 + i);
    EXPECT(blocks[i] != NULL);
    memset(blocks[i], 0x5A, 24 + i);
  }
  for (size_t i = 0; i < 200; ++i) free(blocks[i]);
}

/* Errors have texts, which stay until the next one. */
static void fail_in_two_ways(void) {
  float value = 1;
  wiresum_session* none = NULL;
  EXPECT(wiresum_all_reduce(NULL, &value, &value, 1, WIRESUM_FLOAT32, WIRESUM_SUM, NULL) == WIRESUM_ERROR_ARGUMENT);
  stir_memory();
  EXPECT(strstr(wiresum_error_text(), "the session is NULL") != NULL);
  EXPECT(wiresum_join("late", 5, 1, NULL, 0, 60, &none) == WIRESUM_ERROR_ARGUMENT);
  stir_memory();
  EXPECT(strstr(wiresum_error_text(), "rank must be 0 to world_size - 1") != NULL);
}

static void sum(void) {
  static int32_t values[ELEMENTS];
  static float floats[ELEMENTS];
  wiresum_operation* operation = NULL;
  for (int i = 0; i < ELEMENTS; ++i) values[i] = i;
  EXPECT(wiresum_all_reduce(session, values, values, ELEMENTS, WIRESUM_INT32, WIRESUM_SUM, &operation) == WIRESUM_OK);
  EXPECT(wiresum_wait(&operation, WIRESUM_FOREVER) == WIRESUM_OK);
  for (int i = 0; i < ELEMENTS; ++i) EXPECT(values[i] == i * world_size);
  for (int i = 0; i < ELEMENTS; ++i) floats[i] = 2.0F;
  EXPECT(wiresum_all_reduce(session, floats, floats, ELEMENTS, WIRESUM_FLOAT32, WIRESUM_AVERAGE, NULL) == WIRESUM_OK);
  for (int i = 0; i < ELEMENTS; ++i) EXPECT(floats[i] == 2.0F);
}

static void join(void) {
  EXPECT(wiresum_join("late", rank, world_size, NULL, 0, 60, &session) == WIRESUM_OK);
  sum();
}

static void leave(void) {
  EXPECT(wiresum_leave(&session) == WIRESUM_OK);
  fail_in_two_ways();
}

/* ---- when ---- */

static void do_all(void) {
  fail_in_two_ways();
  if (session == NULL) join();
  sum();
  leave();
  printf("done\n");
  fflush(stdout);
}

static int is_last_act;

/* After exit handlers, those of C++ objects in this program too. */
__attribute__((destructor)) static void end(void) {
  if (is_last_act) do_all();
}

static void end_thread(void* is_used) {
  if (is_used != NULL) do_all();
}

static pthread_key_t key;

static void* run(void* way) {
  EXPECT(pthread_setspecific(key, way) == 0);
  fail_in_two_ways(); /* so that the library has what it keeps for this thread */
  return NULL;
}

int main(int count, char** words) {
  const char* const when = count > 1 ? words[1] : "";
  pthread_t thread;
  rank = count > 2 ? atoi(words[2]) : 0;
  world_size = count > 3 ? atoi(words[3]) : 1;
  if (strstr(when, "exit-handler") != NULL) EXPECT(atexit(do_all) == 0);
  if (strstr(when, "destructor") != NULL) is_last_act = 1;
  if (strstr(when, "has-failed") != NULL) fail_in_two_ways();
  if (strstr(when, "has-joined") != NULL) join();
  if (strstr(when, "thread") != NULL) {
    EXPECT(pthread_key_create(&key, end_thread) == 0);
    EXPECT(pthread_create(&thread, NULL, run, &key) == 0);
    EXPECT(pthread_join(thread, NULL) == 0);
  }
  exit(EXIT_SUCCESS);
}
