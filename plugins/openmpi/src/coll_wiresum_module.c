/* A communicator's module: what is below it, and its place in a job. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coll_wiresum.h"
#include "ompi/constants.h"
#include "opal/util/output.h"

/* The collectives that the module serves; modules below must serve them, too. */
/* clang-format off */
#define FOR_ALL_SERVED(DO)                                                                      \
  DO(allreduce) DO(reduce) DO(reduce_scatter_block) DO(bcast) DO(allgather) DO(barrier)         \
  DO(iallreduce) DO(ireduce) DO(ireduce_scatter_block) DO(ibcast) DO(iallgather) DO(ibarrier)
/* clang-format on */

static int enable(mca_coll_base_module_t* base, struct ompi_communicator_t* comm) {
  mca_coll_wiresum_module_t* module = (mca_coll_wiresum_module_t*)base;
#define REQUIRE(name) \
  if (comm->c_coll->coll_##name == NULL) return OMPI_ERR_NOT_FOUND;
  FOR_ALL_SERVED(REQUIRE)
#undef REQUIRE
  module->below = *comm->c_coll;
#define RETAIN(name) OBJ_RETAIN(module->below.coll_##name##_module);
  FOR_ALL_SERVED(RETAIN)
#undef RETAIN
  module->is_enabled = true;
  module->context_id = ompi_comm_get_cid(comm);
  return OMPI_SUCCESS;
}

static void construct(mca_coll_wiresum_module_t* module) {
  memset(&module->below, 0, sizeof module->below);
  module->is_enabled = false;
  module->state = WIRESUM_UNTRIED;
  module->session = NULL;
  module->context_id = 0;
  module->super.coll_module_enable = enable;
#define SERVE(name) module->super.coll_##name = mca_coll_wiresum_##name;
  FOR_ALL_SERVED(SERVE)
#undef SERVE
}

static void say_what_was_carried(const mca_coll_wiresum_module_t* module) {
  wiresum_statistics statistics;
  if (mca_coll_wiresum_component.verbose < 1 || wiresum_rank(module->session) != 0 ||
      wiresum_get_statistics(module->session, &statistics, sizeof statistics) != WIRESUM_OK) {
    return;
  }
  opal_output(0,
              "coll:wiresum: communicator %" PRIu32 ": %" PRIu64 " collectives through the network, %" PRIu64
              " packets sent by rank 0, %" PRIu64 " of them again",
              module->context_id, statistics.operations, statistics.packets_sent, statistics.retransmissions);
}

static void destruct(mca_coll_wiresum_module_t* module) {
  if (module->session != NULL) {
    say_what_was_carried(module);
    (void)wiresum_leave(&module->session);
  }
  if (!module->is_enabled) return;
#define RELEASE(name) OBJ_RELEASE(module->below.coll_##name##_module);
  FOR_ALL_SERVED(RELEASE)
#undef RELEASE
}

OBJ_CLASS_INSTANCE(mca_coll_wiresum_module_t, mca_coll_base_module_t, construct, destruct);

void mca_coll_wiresum_complain(const char* what, int code) {
  opal_output(0, "coll:wiresum: %s: %s (%s)", what, wiresum_error_text(), wiresum_code_name(code));
}

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

/* A collective call; returns a name that is unique with high probability. */
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

static int agree_that_all_did(mca_coll_wiresum_module_t* module, struct ompi_communicator_t* comm, bool did,
                              bool* all_did) {
  int own = did, smallest = 0;
  const int code =
      module->below.coll_allreduce(&own, &smallest, 1, MPI_INT, MPI_MIN, comm, module->below.coll_allreduce_module);
  *all_did = smallest == 1;
  return code;
}

static int join(mca_coll_wiresum_module_t* module, struct ompi_communicator_t* comm, const char* job) {
  char timeout[64], endpoint[512];
  const char* settings[3] = {timeout, NULL, NULL};
  snprintf(timeout, sizeof timeout, "WIRESUM_JOIN_TIMEOUT=%d", mca_coll_wiresum_component.join_timeout_s);
  if (mca_coll_wiresum_component.switch_endpoint != NULL && *mca_coll_wiresum_component.switch_endpoint != '\0') {
    snprintf(endpoint, sizeof endpoint, "WIRESUM_SWITCH=%s", mca_coll_wiresum_component.switch_endpoint);
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
  module->state = WIRESUM_REFUSED; /* also for what the agreements themselves call */
  char job[128];
  bool all_did = false;
  if (agree_on_job(module, comm, job, sizeof job) != OMPI_SUCCESS) return false;
  const int code = join(module, comm, job);
  if (code != WIRESUM_OK) mca_coll_wiresum_complain("a communicator goes on without the network", code);
  if (agree_that_all_did(module, comm, code == WIRESUM_OK, &all_did) == OMPI_SUCCESS && all_did) {
    module->state = WIRESUM_JOINED;
  } else if (module->session != NULL) {
    (void)wiresum_leave(&module->session);
  }
  return module->state == WIRESUM_JOINED;
}
