/* A communicator's module, and the job that it joins. */
#ifndef MCA_COLL_WIRESUM_JOB_H
#define MCA_COLL_WIRESUM_JOB_H

#include "ompi_config.h"

#include <wiresum/wiresum.h>

#include "ompi/communicator/communicator.h"
#include "ompi/mca/coll/coll.h"

/* MCA parameters: coll_wiresum_... */
typedef struct mca_coll_wiresum_parameters_t {
  int priority;
  unsigned long min_bytes;
  int join_after;
  char* switch_endpoint;
  bool float32;
  int join_timeout_s;
  int verbose;
} mca_coll_wiresum_parameters_t;

extern mca_coll_wiresum_parameters_t mca_coll_wiresum_parameters;

typedef enum { WIRESUM_UNTRIED, WIRESUM_JOINED, WIRESUM_REFUSED } mca_coll_wiresum_state_t;

typedef struct mca_coll_wiresum_module_t {
  mca_coll_base_module_t super;
  mca_coll_base_comm_coll_t below; /* the modules that would serve the communicator without us */
  bool is_enabled;
  mca_coll_wiresum_state_t state;
  int suitable; /* collectives that the network could have carried, before the communicator tried to join */
  wiresum_session* session;
  uint32_t context_id; /* the communicator's, for messages */
} mca_coll_wiresum_module_t;

OBJ_CLASS_DECLARATION(mca_coll_wiresum_module_t);

/* Whether the communicator is in a job. */
static inline bool mca_coll_wiresum_is_joined(const mca_coll_wiresum_module_t* module) {
  return module->state == WIRESUM_JOINED;
}
/* Whether the network carries a collective that suits it: this counts it, and, if it is a blocking one, may join. */
bool mca_coll_wiresum_carries(mca_coll_wiresum_module_t* module, struct ompi_communicator_t* comm, bool is_blocking);
/* Leaves the job, if there is one. */
void mca_coll_wiresum_leave(mca_coll_wiresum_module_t* module);

#endif
