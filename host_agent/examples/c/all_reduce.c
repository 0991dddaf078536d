/* The smallest program: sums a vector over all workers, and checks the sum.
 *
 *     wiresum switch &
 *     cc all_reduce.c -o all_reduce $(pkg-config --cflags --libs wiresum)
 *     ./all_reduce 0 2 & ./all_reduce 1 2
 */
#include <stdio.h>
#include <stdlib.h>
#include <wiresum/wiresum.h>

enum { ELEMENTS = 1000000 };

static void check(int code, const char* what) {
  if (code == WIRESUM_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, wiresum_code_name(code), wiresum_error_text());
  exit(EXIT_FAILURE);
}

int main(int count, char** arguments) {
  if (count != 3) {
    fprintf(stderr, "usage: all_reduce RANK WORLD_SIZE\n");
    return EXIT_FAILURE;
  }
  const int rank = atoi(arguments[1]);
  const int world_size = atoi(arguments[2]);
  float* values = malloc(ELEMENTS * sizeof *values);
  if (values == NULL) return EXIT_FAILURE;
  for (int i = 0; i < ELEMENTS; ++i) values[i] = (float)(rank + 1);

  wiresum_session* session;
  wiresum_operation* sum;
  check(wiresum_join("example", rank, world_size, NULL, 0, 60, &session), "join");
  check(wiresum_all_reduce(session, values, values, ELEMENTS, WIRESUM_FLOAT32, WIRESUM_SUM, &sum), "all-reduce");
  /* Here there is time to compute something else. */
  check(wiresum_wait(&sum, WIRESUM_FOREVER), "wait");

  wiresum_statistics statistics;
  check(wiresum_get_statistics(session, &statistics, sizeof statistics), "statistics");
  check(wiresum_leave(&session), "leave");
  const float expected = (float)(world_size * (world_size + 1) / 2);
  for (int i = 0; i < ELEMENTS; ++i) {
    if (values[i] != expected) {
      fprintf(stderr, "element %d is %g, expected %g\n", i, (double)values[i], (double)expected);
      return EXIT_FAILURE;
    }
  }
  printf("rank %d: every element is %g; %llu packets brought the sum\n", rank, (double)expected,
         (unsigned long long)statistics.results);
  free(values);
  return EXIT_SUCCESS;
}
