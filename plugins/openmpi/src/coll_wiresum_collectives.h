/* The collectives of MPI that the network does; each goes below what does not suit. */
#ifndef MCA_COLL_WIRESUM_COLLECTIVES_H
#define MCA_COLL_WIRESUM_COLLECTIVES_H

#include "ompi_config.h"

#include "ompi/communicator/communicator.h"
#include "ompi/datatype/ompi_datatype.h"
#include "ompi/mca/coll/coll.h"
#include "ompi/request/request.h"

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
