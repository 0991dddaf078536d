/* Open MPI's collectives through the network: an MCA component of the framework `coll`, over libwiresum.
 *
 * Theory of operation. A communicator that may use the network gets this component's module, in front of the modules
 * that would serve it otherwise ("below"). Whether a collective suits the network is decided by what MPI requires to be
 * the same at all processes: the kind of collective, the number of bytes, type and operator. All others go below.
 *
 * Each communicator is a job of its own, since processes call collectives in one order only within a communicator. It
 * joins in the first *blocking* collective that suits, in which all processes take part. Nonblocking ones must not wait
 * for others, so earlier ones go below. The processes agree, by a collective below, on the job's name, and then on
 * whether all have joined; if one could not, all use the modules below from then on.
 *
 * All processes of a communicator must have this component with the same settings, and that must be known beforehand:
 * each publishes a digest of its settings when it starts (by PMIx, with the addresses). A communicator whose processes
 * have different digests does not get the module.
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

/* Is the communicator in a job? A blocking collective joins one if that was not tried before. */
bool mca_coll_wiresum_is_joined(mca_coll_wiresum_module_t* module, struct ompi_communicator_t* comm, bool may_join);

/* A collective on its way through the network, and what must be done once it is complete. */
typedef struct mca_coll_wiresum_flight_t {
  wiresum_operation* operation;
  void* packed; /* what the network reads and writes in place of the user's memory, or NULL */
  void* user;   /* that the packed bytes go to, or NULL */
  int user_count;
  struct ompi_datatype_t* user_type; /* retained */
} mca_coll_wiresum_flight_t;

/* Ends a flight whose operation is complete with `code`, and frees it. Reports a failure; returns an MPI error code. */
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

int mca_coll_wiresum_allreduce(const void* sbuf, void* rbuf, int count, struct ompi_datatype_t* dtype,
                               struct ompi_op_t* op, struct ompi_communicator_t* comm, mca_coll_base_module_t* module);
int mca_coll_wiresum_reduce(const void* sbuf, void* rbuf, int count, struct ompi_datatype_t* dtype,
                            struct ompi_op_t* op, int root, struct ompi_communicator_t* comm,
                            mca_coll_base_module_t* module);
int mca_coll_wiresum_reduce_scatter_block(const void* sbuf, void* rbuf, int rcount, struct ompi_datatype_t* dtype,
                                          struct ompi_op_t* op, struct ompi_communicator_t* comm,
                                          mca_coll_base_module_t* module);
int mca_coll_wiresum_bcast(void* buff, int count, struct ompi_datatype_t* dtype, int root,
                           struct ompi_communicator_t* comm, mca_coll_base_module_t* module);
int mca_coll_wiresum_allgather(const void* sbuf, int scount, struct ompi_datatype_t* sdtype, void* rbuf, int rcount,
                               struct ompi_datatype_t* rdtype, struct ompi_communicator_t* comm,
                               mca_coll_base_module_t* module);
int mca_coll_wiresum_barrier(struct ompi_communicator_t* comm, mca_coll_base_module_t* module);

int mca_coll_wiresum_iallreduce(const void* sbuf, void* rbuf, int count, struct ompi_datatype_t* dtype,
                                struct ompi_op_t* op, struct ompi_communicator_t* comm, ompi_request_t** request,
                                mca_coll_base_module_t* module);
int mca_coll_wiresum_ireduce(const void* sbuf, void* rbuf, int count, struct ompi_datatype_t* dtype,
                             struct ompi_op_t* op, int root, struct ompi_communicator_t* comm, ompi_request_t** request,
                             mca_coll_base_module_t* module);
int mca_coll_wiresum_ireduce_scatter_block(const void* sbuf, void* rbuf, int rcount, struct ompi_datatype_t* dtype,
                                           struct ompi_op_t* op, struct ompi_communicator_t* comm,
                                           ompi_request_t** request, mca_coll_base_module_t* module);
int mca_coll_wiresum_ibcast(void* buff, int count, struct ompi_datatype_t* dtype, int root,
                            struct ompi_communicator_t* comm, ompi_request_t** request, mca_coll_base_module_t* module);
int mca_coll_wiresum_iallgather(const void* sbuf, int scount, struct ompi_datatype_t* sdtype, void* rbuf, int rcount,
                                struct ompi_datatype_t* rdtype, struct ompi_communicator_t* comm,
                                ompi_request_t** request, mca_coll_base_module_t* module);
int mca_coll_wiresum_ibarrier(struct ompi_communicator_t* comm, ompi_request_t** request,
                              mca_coll_base_module_t* module);

#endif
