/* A communicator's module: the collectives that it serves, and the modules below it. */
#include "coll_wiresum_job.h"

#include <inttypes.h>
#include <string.h>

#include "coll_wiresum_collectives.h"
#include "ompi/constants.h"
#include "opal/util/output.h"

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
  module->suitable = 0;
  module->session = NULL;
  module->context_id = 0;
  module->super.coll_module_enable = enable;
#define SERVE(name) module->super.coll_##name = mca_coll_wiresum_##name;
  FOR_ALL_SERVED(SERVE)
#undef SERVE
}

static void report(const mca_coll_wiresum_module_t* module) {
  wiresum_statistics statistics;
  if (mca_coll_wiresum_parameters.verbose < 1 || wiresum_rank(module->session) != 0 ||
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
    report(module);
    mca_coll_wiresum_leave(module);
  }
  if (!module->is_enabled) return;
#define RELEASE(name) OBJ_RELEASE(module->below.coll_##name##_module);
  FOR_ALL_SERVED(RELEASE)
#undef RELEASE
}

OBJ_CLASS_INSTANCE(mca_coll_wiresum_module_t, mca_coll_base_module_t, construct, destruct);
