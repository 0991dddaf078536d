/* Joining: a communicator's processes agree on a job's name, and on whether all have joined it. */
#include "coll_wiresum_job.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coll_wiresum_flight.h"
#include "ompi/constants.h"

mca_coll_wiresum_parameters_t mca_coll_wiresum_parameters;

/* A name that users recognise, from rank 0: WIRESUM_JOB, or Slurm's job. */
static int agree_on_run(mca_coll_wiresum_module_t* module, struct ompi_communicator_t* comm, char* run, size_t bytes) {
  const char* const name = getenv("WIRESUM_JOB");
  const char* const slurm = getenv("SLURM_JOB_ID");
  memset(run, 0, bytes);
  if (name != NULL && *name != '\0') {
    snprintf(run, bytes, "%s.", name);
  } else if (slurm != NULL && *slurm != '\0') {
    snprintf(run, bytes, "slurm-%s.", slurm);
  }
  return module->below.coll_bcast(run, (int)bytes, MPI_BYTE, 0, comm, module->below.coll_bcast_module);
}

/* A collective call; gives a name that is unique with high probability. */
static int agree_on_job(mca_coll_wiresum_module_t* module, struct ompi_communicator_t* comm, char* job, size_t bytes) {
  uint64_t own = 0, smallest = 0;
  FILE* random = fopen("/dev/urandom", "rb");
  if (random == NULL || fread(&own, sizeof own, 1, random) != 1) own = (uint64_t)getpid();
  if (random != NULL) fclose(random);
  int code = module->below.coll_allreduce(&own, &smallest, 1, MPI_UINT64_T, MPI_MIN, comm,
                                          module->below.coll_allreduce_module);
  char run[64] = "";
  if (code == MPI_SUCCESS) code = agree_on_run(module, comm, run, sizeof run);
  snprintf(job, bytes, "%.63smpi-%" PRIx32 "-%" PRIu32 "-%016" PRIx64, run, OPAL_PROC_MY_NAME.jobid, module->context_id,
           smallest);
  return code;
}

static int agree_that_all_joined(mca_coll_wiresum_module_t* module, struct ompi_communicator_t* comm, bool joined,
                                 bool* all_joined) {
  int own = joined, smallest = 0;
  const int code =
      module->below.coll_allreduce(&own, &smallest, 1, MPI_INT, MPI_MIN, comm, module->below.coll_allreduce_module);
  *all_joined = smallest == 1;
  return code;
}

static int join(mca_coll_wiresum_module_t* module, struct ompi_communicator_t* comm, const char* job) {
  char timeout[64], endpoint[512];
  const char* settings[3] = {timeout, NULL, NULL};
  snprintf(timeout, sizeof timeout, "WIRESUM_JOIN_TIMEOUT=%d", mca_coll_wiresum_parameters.join_timeout_s);
  if (mca_coll_wiresum_parameters.switch_endpoint != NULL && *mca_coll_wiresum_parameters.switch_endpoint != '\0') {
    snprintf(endpoint, sizeof endpoint, "WIRESUM_SWITCH=%s", mca_coll_wiresum_parameters.switch_endpoint);
    settings[1] = endpoint;
  }
  int code =
      wiresum_join(job, ompi_comm_rank(comm), ompi_comm_size(comm), settings, WIRESUM_NO_QUEUE, &module->session);
  /* MPI does not limit how long a process may compute before it calls a collective. */
  if (code == WIRESUM_OK) code = wiresum_set_timeout(module->session, WIRESUM_FOREVER);
  return code;
}

bool mca_coll_wiresum_is_joined(mca_coll_wiresum_module_t* module, struct ompi_communicator_t* comm, bool may_join) {
  if (module->state != WIRESUM_UNTRIED || !may_join) return module->state == WIRESUM_JOINED;
  module->state = WIRESUM_REFUSED; /* until joined: the agreements call collectives, too */
  char job[128];
  bool all_joined = false;
  if (agree_on_job(module, comm, job, sizeof job) != OMPI_SUCCESS) return false;
  const int code = join(module, comm, job);
  if (code != WIRESUM_OK) mca_coll_wiresum_complain("a communicator goes on without the network", code);
  if (agree_that_all_joined(module, comm, code == WIRESUM_OK, &all_joined) == OMPI_SUCCESS && all_joined) {
    module->state = WIRESUM_JOINED;
  } else if (module->session != NULL) {
    (void)wiresum_leave(&module->session);
  }
  return module->state == WIRESUM_JOINED;
}
