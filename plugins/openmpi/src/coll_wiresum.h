/* Open MPI's collectives through the network: an MCA component of the framework `coll`, over libwiresum.
 *
 * Theory of operation. A communicator that may use the network gets a module of ours, which stands above the modules
 * that would have served it without us ("below"). A collective goes through the network if all its processes can tell,
 * from what MPI says is the same at all of them, that it suits: the kind of the collective, the number of bytes, type
 * and operator. Everything else goes below.
 *
 * A communicator is a job of its own, since only within one do processes call collectives in one order. It is joined in
 * the first *blocking* collective that suits: everybody is there then. Nonblocking ones must not wait for others, so
 * those before that go below. All agree, by a collective below, on the job's name, and then on whether everybody has
 * joined; if somebody could not, all use what is below from then on.
 *
 * That all processes of a communicator have this component, and have it set up alike, must be known before: each
 * publishes a digest of its settings when it starts (by PMIx, with the addresses), and a communicator whose processes
 * do not all have the same one has no module of ours.
 */
#ifndef MCA_COLL_WIRESUM_H
#define MCA_COLL_WIRESUM_H

#include "ompi_config.h"

#include <mpi.h>
#include <wiresum/wiresum.h>

#include "ompi/communicator/communicator.h"
#include "ompi/datatype/ompi_datatype.h"
#include "ompi/mca/coll/coll.h"
#include "ompi/request/request.h"

typedef struct mca_coll_wiresum_component_t {
  mca_coll_base_component_2_0_0_t super;
  /* MCA parameters: coll_wiresum_... */
  int priority;
  unsigned long min_bytes;
  char* switch_endpoint;
  bool float32;
  int join_timeout_s;
  int verbose;
  /* Of what must be alike at all processes; 0: this process has no switch. */
  uint64_t digest;
} mca_coll_wiresum_component_t;

OMPI_MODULE_DECLSPEC extern mca_coll_wiresum_component_t mca_coll_wiresum_component;

typedef enum { WIRESUM_UNTRIED, WIRESUM_JOINED, WIRESUM_REFUSED } mca_coll_wiresum_state_t;

typedef struct mca_coll_wiresum_module_t {
  mca_coll_base_module_t super;
  mca_coll_base_comm_coll_t below; /* what the communicator would use without us */
  bool is_enabled;
  mca_coll_wiresum_state_t state;
  wiresum_session* session;
  uint32_t context_id; /* of the communicator, for people */
} mca_coll_wiresum_module_t;

OBJ_CLASS_DECLARATION(mca_coll_wiresum_module_t);

mca_coll_base_module_t* mca_coll_wiresum_comm_query(struct ompi_communicator_t* comm, int* priority);

/* Is the communicator in a job? A blocking collective joins it if nobody has tried. */
bool mca_coll_wiresum_is_joined(mca_coll_wiresum_module_t* module, struct ompi_communicator_t* comm, bool may_join);

/* A collective on its way through the network, and what must be done once it is complete. */
typedef struct mca_coll_wiresum_flight_t {
  wiresum_operation* operation;
  void* packed; /* what the network reads and writes in place of the user's memory, or NULL */
  void* user;   /* that the packed bytes go to, or NULL */
  int user_count;
  struct ompi_datatype_t* user_type; /* retained */
} mca_coll_wiresum_flight_t;

/* Takes over a flight whose operation is complete with `code`; gives an MPI error code, having said what went wrong. */
int mca_coll_wiresum_land(mca_coll_wiresum_flight_t* flight, int code);
/* Waits for it, while MPI makes progress. */
int mca_coll_wiresum_wait(mca_coll_wiresum_flight_t* flight);
/* Makes a request of it. */
int mca_coll_wiresum_request(mca_coll_wiresum_flight_t* flight, struct ompi_communicator_t* comm,
                             ompi_request_t** request);
void mca_coll_wiresum_requests_open(void);
void mca_coll_wiresum_requests_close(void);

/* Says what libwiresum says, through Open MPI's output. */
void mca_coll_wiresum_complain(const char* what, int code);

/* What we serve, and so what must be below. */
/* clang-format off */
#define FOR_ALL_SERVED(DO)                                                                      \
  DO(allreduce) DO(reduce) DO(reduce_scatter_block) DO(bcast) DO(allgather) DO(barrier)         \
  DO(iallreduce) DO(ireduce) DO(ireduce_scatter_block) DO(ibcast) DO(iallgather) DO(ibarrier)
/* clang-format on */

/* Each is as Open MPI has its type. */
#define DECLARE(name) __typeof__(*(mca_coll_base_module_##name##_fn_t)NULL) mca_coll_wiresum_##name;
FOR_ALL_SERVED(DECLARE)
#undef DECLARE

#endif
