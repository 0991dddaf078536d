/* Joining: a communicator's processes agree on a job's name and settings, and on whether all have joined it. */
#include "coll_wiresum_job.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coll_wiresum_flight.h"
#include "ompi/constants.h"
#include "opal/util/output.h"

mca_coll_wiresum_parameters_t mca_coll_wiresum_parameters;

/* Jobs that this process is in, or is joining. */
static atomic_int jobs;
/* This process knows that a warning was printed: one is enough. */
static atomic_bool was_warned;

/* What the processes of a communicator must do alike, before it joins. */
typedef struct {
  uint64_t name;               /* unique with high probability */
  uint64_t is_first;           /* none of the processes is in a job */
  uint64_t is_without_warning; /* none of them knows of one */
} Agreement;

/* Rank 0's settings for the job. */
typedef struct {
  char run[64]; /* a name that users recognise: WIRESUM_JOB, or Slurm's job */
  char precision[32];
} Settings;

/* The smallest of all processes' values, field by field. A collective call. */
static int agree(mca_coll_wiresum_module_t* module, struct ompi_communicator_t* comm, Agreement* agreed) {
  Agreement own = {.is_first = atomic_load(&jobs) == 0, .is_without_warning = !atomic_load(&was_warned)};
  FILE* random = fopen("/dev/urandom", "rb");
  if (random == NULL || fread(&own.name, sizeof own.name, 1, random) != 1) own.name = (uint64_t)getpid();
  if (random != NULL) fclose(random);
  return module->below.coll_allreduce(&own, agreed, sizeof own / sizeof own.name, MPI_UINT64_T, MPI_MIN, comm,
                                      module->below.coll_allreduce_module);
}

static const char* variable(const char* name, const char* otherwise) {
  const char* const value = getenv(name);
  return value != NULL && *value != '\0' ? value : otherwise;
}

/* A collective call. */
static int agree_on_settings(mca_coll_wiresum_module_t* module, struct ompi_communicator_t* comm, Settings* settings) {
  memset(settings, 0, sizeof *settings);
  const char* const name = variable("WIRESUM_JOB", NULL);
  const char* const slurm = variable("SLURM_JOB_ID", NULL);
  if (name != NULL) {
    snprintf(settings->run, sizeof settings->run, "%s.", name);
  } else if (slurm != NULL) {
    snprintf(settings->run, sizeof settings->run, "slurm-%s.", slurm);
  }
  /* MPI's programs expect the error of an addition, not that of a block. */
  snprintf(settings->precision, sizeof settings->precision, "%s", variable("WIRESUM_PRECISION", "exact"));
  return module->below.coll_bcast(settings, sizeof *settings, MPI_BYTE, 0, comm, module->below.coll_bcast_module);
}

/* The lowest rank that did not join; the communicator's size if all have. A collective call. */
static int agree_on_who_failed(mca_coll_wiresum_module_t* module, struct ompi_communicator_t* comm, bool joined,
                               int* failed) {
  int own = joined ? ompi_comm_size(comm) : ompi_comm_rank(comm);
  return module->below.coll_allreduce(&own, failed, 1, MPI_INT, MPI_MIN, comm, module->below.coll_allreduce_module);
}

static int join(mca_coll_wiresum_module_t* module, struct ompi_communicator_t* comm, const char* job,
                const Settings* agreed, bool is_first) {
  char precision[64], global_rank[64], endpoint[512];
  const char* settings[4] = {precision, global_rank};
  snprintf(precision, sizeof precision, "WIRESUM_PRECISION=%s", agreed->precision);
  /* All processes are of one MPI_COMM_WORLD, where this is the rank. */
  snprintf(global_rank, sizeof global_rank, "WIRESUM_GLOBAL_RANK=%" PRIu32, OPAL_PROC_MY_NAME.vpid);
  if (mca_coll_wiresum_parameters.switch_endpoint != NULL && *mca_coll_wiresum_parameters.switch_endpoint != '\0') {
    snprintf(endpoint, sizeof endpoint, "WIRESUM_SWITCH=%s", mca_coll_wiresum_parameters.switch_endpoint);
    settings[2] = endpoint;
  }
  atomic_fetch_add(&jobs, 1);
  const unsigned how = is_first ? WIRESUM_NO_QUEUE : WIRESUM_FURTHER; /* a program may have many communicators */
  int code = wiresum_join(job, ompi_comm_rank(comm), ompi_comm_size(comm), settings, how,
                          mca_coll_wiresum_parameters.join_timeout_s, &module->session);
  if (code != WIRESUM_OK) atomic_fetch_sub(&jobs, 1);
  /* MPI does not limit how long a process may compute before it calls a collective. */
  if (code == WIRESUM_OK) code = wiresum_set_timeout(module->session, WIRESUM_FOREVER);
  return code;
}

void mca_coll_wiresum_leave(mca_coll_wiresum_module_t* module) {
  if (module->session == NULL) return;
  (void)wiresum_leave(&module->session);
  atomic_fetch_sub(&jobs, 1);
}

/* The library's text without the job's name, which is long, and cut after what it says first. */
static void shorten(const char* text, const char* job, char* line, size_t bytes) {
  char quoted[160];
  const int length = snprintf(quoted, sizeof quoted, " '%s'", job);
  size_t used = 0;
  while (*text != '\0' && used + 1 < bytes) {
    if (strncmp(text, quoted, (size_t)length) == 0) {
      text += length;
    } else {
      line[used++] = *text++;
    }
  }
  line[used] = '\0';
  if (*text == '\0') return;
  while (used > 0 && line[used] != ':' && line[used] != ';' && line[used] != ',') --used;
  if (used > 0) line[used] = '\0';
}

/* Says in a line that the communicator goes on below. */
static void warn(int code, const char* job) {
  char cause[200];
  shorten(wiresum_error_text(), job, cause, sizeof cause);
  opal_output(0, "coll:wiresum: a communicator goes on without the network: %s (%s)", cause, wiresum_code_name(code));
}

bool mca_coll_wiresum_carries(mca_coll_wiresum_module_t* module, struct ompi_communicator_t* comm, bool is_blocking) {
  if (module->state != WIRESUM_UNTRIED) return module->state == WIRESUM_JOINED;
  if (module->suitable < mca_coll_wiresum_parameters.join_after) {
    ++module->suitable;
    return false;
  }
  if (!is_blocking) return false;
  module->state = WIRESUM_REFUSED; /* until joined: the agreements call collectives, too */
  Agreement agreed;
  Settings settings;
  if (agree(module, comm, &agreed) != OMPI_SUCCESS) return false;
  if (agree_on_settings(module, comm, &settings) != OMPI_SUCCESS) return false;
  char job[128];
  snprintf(job, sizeof job, "%.63smpi-%" PRIx32 "-%" PRIu32 "-%016" PRIx64, settings.run, OPAL_PROC_MY_NAME.jobid,
           module->context_id, agreed.name);
  const int code = join(module, comm, job, &settings, agreed.is_first != 0);
  if (code != WIRESUM_OK && mca_coll_wiresum_parameters.verbose > 0) {
    mca_coll_wiresum_complain("a communicator goes on without the network", code);
  }
  int failed = 0;
  if (agree_on_who_failed(module, comm, code == WIRESUM_OK, &failed) == OMPI_SUCCESS &&
      failed == ompi_comm_size(comm)) {
    module->state = WIRESUM_JOINED;
    return true;
  }
  if (code != WIRESUM_OK && failed == ompi_comm_rank(comm) && agreed.is_without_warning != 0) warn(code, job);
  atomic_store(&was_warned, true);
  mca_coll_wiresum_leave(module);
  return false;
}
