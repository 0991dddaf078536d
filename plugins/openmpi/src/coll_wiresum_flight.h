/* A collective on its way through the network, and what must be done once it is complete. */
#ifndef MCA_COLL_WIRESUM_FLIGHT_H
#define MCA_COLL_WIRESUM_FLIGHT_H

#include "ompi_config.h"

#include <wiresum/wiresum.h>

#include "ompi/communicator/communicator.h"
#include "ompi/datatype/ompi_datatype.h"
#include "ompi/request/request.h"

typedef struct mca_coll_wiresum_flight_t {
  wiresum_operation* operation;
  void* packed; /* what the network reads and writes in place of the user's memory, or NULL */
  size_t packed_bytes;
  void* user; /* where the packed result goes; MPI_BOTTOM, which is NULL, is a place, too */
  int user_count;
  struct ompi_datatype_t* user_type; /* retained; NULL: there is no packed result */
} mca_coll_wiresum_flight_t;

#define MCA_COLL_WIRESUM_NO_FLIGHT {NULL, NULL, 0, NULL, 0, NULL}

/* Ends a flight whose operation is complete with `code`. Returns an MPI error code, and reports an error. */
int mca_coll_wiresum_land(mca_coll_wiresum_flight_t* flight, int code);
/* Frees what a flight holds, whose operation has not started or is complete; nothing is unpacked. */
void mca_coll_wiresum_drop(mca_coll_wiresum_flight_t* flight);
/* Waits for it, while MPI makes progress. */
int mca_coll_wiresum_wait(mca_coll_wiresum_flight_t* flight);
/* Turns it into a request, which holds the communicator until it is freed. */
int mca_coll_wiresum_request(mca_coll_wiresum_flight_t* flight, struct ompi_communicator_t* comm,
                             ompi_request_t** request);
void mca_coll_wiresum_requests_open(void);
void mca_coll_wiresum_requests_close(void);

/* Prints libwiresum's error through Open MPI's output. */
void mca_coll_wiresum_complain(const char* what, int code);

#endif
