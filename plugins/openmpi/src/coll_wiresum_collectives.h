/* The collectives of MPI that the network does; each goes below what does not suit. */
#ifndef MCA_COLL_WIRESUM_COLLECTIVES_H
#define MCA_COLL_WIRESUM_COLLECTIVES_H

#include "ompi_config.h"

#include "ompi/communicator/communicator.h"
#include "ompi/datatype/ompi_datatype.h"
#include "ompi/mca/coll/coll.h"
#include "ompi/request/request.h"

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
