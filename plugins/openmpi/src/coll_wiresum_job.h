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
  wiresum_session* session;
  uint32_t context_id; /* the communicator's, for messages */
} mca_coll_wiresum_module_t;

OBJ_CLASS_DECLARATION(mca_coll_wiresum_module_t);

/* Whether the communicator is in a job. With `may_join`, tries to join once. */
bool mca_coll_wiresum_is_joined(mca_coll_wiresum_module_t* module, struct ompi_communicator_t* comm, bool may_join);

#endif
