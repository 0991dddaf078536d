/* The MPI collectives that the network serves. */
#ifndef MCA_COLL_WIRESUM_COLLECTIVES_H
#define MCA_COLL_WIRESUM_COLLECTIVES_H

#include "ompi_config.h"

#include "ompi/communicator/communicator.h"
#include "ompi/datatype/ompi_datatype.h"
#include "ompi/mca/coll/coll.h"
#include "ompi/request/request.h"

/* Modules below must serve all of these, too. */
/* clang-format off */
#define FOR_ALL_SERVED(DO)                                                                      \
  DO(allreduce) DO(reduce) DO(reduce_scatter_block) DO(bcast) DO(allgather) DO(barrier)         \
  DO(iallreduce) DO(ireduce) DO(ireduce_scatter_block) DO(ibcast) DO(iallgather) DO(ibarrier)
/* clang-format on */

#define DECLARE(name) __typeof__(*(mca_coll_base_module_##name##_fn_t)NULL) mca_coll_wiresum_##name;
FOR_ALL_SERVED(DECLARE)
#undef DECLARE

#endif
