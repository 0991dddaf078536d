/* The collectives: which go through the network, and how.
 *
 * What decides is the same at all processes. For sums, MPI has count, type and operator be the same everywhere. For
 * copies only the bytes are: a process may receive as one vector what another sends as a thousand integers. Memory that
 * is no single run of bytes is packed.
 */
#include <stdint.h>
#include <stdlib.h>

#include "coll_wiresum.h"
#include "ompi/constants.h"
#include "opal/datatype/opal_datatype_internal.h"

typedef mca_coll_wiresum_module_t Module;
typedef mca_coll_wiresum_flight_t Flight;

static const Flight kNoFlight = {NULL, NULL, NULL, 0, NULL};

/* ---- what suits ---- */

static bool sum_suits(const Module* module, size_t elements, const struct ompi_datatype_t* type,
                      const struct ompi_op_t* op, wiresum_dtype* dtype) {
  (void)module;
  if (op != MPI_SUM || !ompi_datatype_is_predefined(type)) return false;
  switch (type->super.id) {
    case OPAL_DATATYPE_INT4:
    case OPAL_DATATYPE_UINT4: /* sums modulo 2^32 are the same for both */
      *dtype = WIRESUM_INT32;
      break;
    case OPAL_DATATYPE_FLOAT4:
      if (!mca_coll_wiresum_component.float32) return false;
      *dtype = WIRESUM_FLOAT32;
      break;
    default:
      return false;
  }
  return elements > 0 && 4 * elements >= mca_coll_wiresum_component.min_bytes;
}

/* `bytes` in all, of which a part is at most what an int counts, since the packing of types does. */
static bool copy_suits(size_t bytes, size_t part_bytes) {
  return part_bytes > 0 && part_bytes <= INT32_MAX && bytes >= mca_coll_wiresum_component.min_bytes;
}

static size_t bytes_of(int count, const struct ompi_datatype_t* type) {
  size_t size = 0;
  ompi_datatype_type_size(type, &size);
  return (size_t)count * size;
}

/* ---- memory that is no single run ---- */

/* Where the bytes of `count` items lie if they are one run; else NULL. */
static void* run_of(const void* buffer, int count, const struct ompi_datatype_t* type) {
  ptrdiff_t lower_bound, extent;
  if (!ompi_datatype_is_contiguous_memory_layout(type, count)) return NULL;
  ompi_datatype_get_true_extent(type, &lower_bound, &extent);
  return (char*)buffer + lower_bound;
}

/* Memory for a packed copy of the user's buffer; if `comes_back`, `land` unpacks the result from it. */
static char* packed_of(Flight* flight, size_t bytes, void* user, int count, struct ompi_datatype_t* type,
                       bool comes_back) {
  flight->packed = malloc(bytes);
  if (flight->packed != NULL && comes_back) {
    flight->user = user;
    flight->user_count = count;
    flight->user_type = type;
    OBJ_RETAIN(type);
  }
  return flight->packed;
}

static int pack(const void* user, int count, const struct ompi_datatype_t* type, void* packed, size_t bytes) {
  return ompi_datatype_sndrcv(user, count, type, packed, (int32_t)bytes, MPI_PACKED);
}

static int unpack(const void* packed, size_t bytes, void* user, int count, const struct ompi_datatype_t* type) {
  return ompi_datatype_sndrcv(packed, (int32_t)bytes, MPI_PACKED, user, count, type);
}

/* ---- landing ---- */

int mca_coll_wiresum_land(Flight* flight, int code) {
  int result = MPI_SUCCESS;
  if (code != WIRESUM_OK) {
    mca_coll_wiresum_complain("a collective failed", code);
    result = MPI_ERR_OTHER;
  } else if (flight->user != NULL) {
    result = unpack(flight->packed, bytes_of(flight->user_count, flight->user_type), flight->user, flight->user_count,
                    flight->user_type);
  }
  if (flight->user_type != NULL) OBJ_RELEASE(flight->user_type);
  free(flight->packed);
  *flight = kNoFlight;
  return result;
}

/* What a start has come to: `code` is libwiresum's. */
static int started(Flight* flight, int code) {
  if (code == WIRESUM_OK) return OMPI_SUCCESS;
  return mca_coll_wiresum_land(flight, code);
}

/* ---- starts ---- */

static int start_allreduce(Module* module, const void* sbuf, void* rbuf, int count, wiresum_dtype dtype,
                           Flight* flight) {
  const void* source = sbuf == MPI_IN_PLACE ? rbuf : sbuf;
  return started(
      flight, wiresum_all_reduce(module->session, source, rbuf, (size_t)count, dtype, WIRESUM_SUM, &flight->operation));
}

static int start_reduce(Module* module, const void* sbuf, void* rbuf, int count, wiresum_dtype dtype, int root,
                        Flight* flight) {
  const void* source = sbuf == MPI_IN_PLACE ? rbuf : sbuf;
  return started(flight, wiresum_reduce(module->session, source, rbuf, (size_t)count, dtype, WIRESUM_SUM, root,
                                        &flight->operation));
}

static int start_reduce_scatter_block(Module* module, const void* sbuf, void* rbuf, int rcount, wiresum_dtype dtype,
                                      Flight* flight) {
  /* In place, the sum is written to the front of the memory from which other parts may still be read.
   */
  if (sbuf == MPI_IN_PLACE) {
    char* sum = packed_of(flight, 4 * (size_t)rcount, rbuf, rcount, MPI_INT32_T, true);
    if (sum == NULL) return OMPI_ERR_OUT_OF_RESOURCE;
    return started(flight, wiresum_reduce_scatter(module->session, rbuf, sum, (size_t)rcount, dtype, WIRESUM_SUM,
                                                  &flight->operation));
  }
  return started(flight, wiresum_reduce_scatter(module->session, sbuf, rbuf, (size_t)rcount, dtype, WIRESUM_SUM,
                                                &flight->operation));
}

static int start_bcast(Module* module, void* buffer, int count, struct ompi_datatype_t* type, int root,
                       Flight* flight) {
  const size_t bytes = bytes_of(count, type);
  const bool is_root = wiresum_rank(module->session) == root;
  char* memory = run_of(buffer, count, type);
  if (memory == NULL) {
    memory = packed_of(flight, bytes, buffer, count, type, !is_root);
    if (memory == NULL) return OMPI_ERR_OUT_OF_RESOURCE;
    if (is_root && pack(buffer, count, type, memory, bytes) != OMPI_SUCCESS) {
      free(flight->packed);
      *flight = kNoFlight;
      return OMPI_ERROR;
    }
  }
  return started(flight, wiresum_broadcast(module->session, memory, bytes, root, &flight->operation));
}

static int start_allgather(Module* module, const void* sbuf, int scount, struct ompi_datatype_t* stype, void* rbuf,
                           int rcount, struct ompi_datatype_t* rtype, Flight* flight) {
  const int rank = wiresum_rank(module->session), size = wiresum_world_size(module->session);
  const size_t part = bytes_of(rcount, rtype);
  ptrdiff_t lower_bound, extent;
  ompi_datatype_get_extent(rtype, &lower_bound, &extent);
  char* all = run_of(rbuf, rcount * size, rtype);
  if (all == NULL) {
    all = packed_of(flight, (size_t)size * part, rbuf, rcount * size, rtype, true);
    if (all == NULL) return OMPI_ERR_OUT_OF_RESOURCE;
  }
  /* The part of our own is brought to its place, unless the network can read it where it lies. */
  char* place = all + (size_t)rank * part;
  const void* source = place;
  int code = OMPI_SUCCESS;
  if (sbuf == MPI_IN_PLACE) {
    if (flight->packed != NULL) {
      code = pack((char*)rbuf + (ptrdiff_t)rank * rcount * extent, rcount, rtype, place, part);
    }
  } else {
    source = run_of(sbuf, scount, stype);
    if (source == NULL) {
      code = pack(sbuf, scount, stype, place, part);
      source = place;
    }
  }
  if (code != OMPI_SUCCESS) {
    (void)mca_coll_wiresum_land(flight, WIRESUM_OK);
    return code;
  }
  return started(flight, wiresum_all_gather(module->session, source, all, part, &flight->operation));
}

static int start_barrier(Module* module, Flight* flight) {
  return started(flight, wiresum_barrier(module->session, &flight->operation));
}

/* ---- blocking ---- */

#define BELOW(name, ...) module->below.coll_##name(__VA_ARGS__, module->below.coll_##name##_module)

static int finish(Flight* flight, int start_code) {
  return start_code == OMPI_SUCCESS ? mca_coll_wiresum_wait(flight) : start_code;
}

int mca_coll_wiresum_allreduce(const void* sbuf, void* rbuf, int count, struct ompi_datatype_t* dtype,
                               struct ompi_op_t* op, struct ompi_communicator_t* comm, mca_coll_base_module_t* base) {
  Module* module = (Module*)base;
  wiresum_dtype type;
  if (!sum_suits(module, (size_t)count, dtype, op, &type) || !mca_coll_wiresum_is_joined(module, comm, true)) {
    return BELOW(allreduce, sbuf, rbuf, count, dtype, op, comm);
  }
  Flight flight = kNoFlight;
  return finish(&flight, start_allreduce(module, sbuf, rbuf, count, type, &flight));
}

int mca_coll_wiresum_reduce(const void* sbuf, void* rbuf, int count, struct ompi_datatype_t* dtype,
                            struct ompi_op_t* op, int root, struct ompi_communicator_t* comm,
                            mca_coll_base_module_t* base) {
  Module* module = (Module*)base;
  wiresum_dtype type;
  if (!sum_suits(module, (size_t)count, dtype, op, &type) || !mca_coll_wiresum_is_joined(module, comm, true)) {
    return BELOW(reduce, sbuf, rbuf, count, dtype, op, root, comm);
  }
  Flight flight = kNoFlight;
  return finish(&flight, start_reduce(module, sbuf, rbuf, count, type, root, &flight));
}

int mca_coll_wiresum_reduce_scatter_block(const void* sbuf, void* rbuf, int rcount, struct ompi_datatype_t* dtype,
                                          struct ompi_op_t* op, struct ompi_communicator_t* comm,
                                          mca_coll_base_module_t* base) {
  Module* module = (Module*)base;
  wiresum_dtype type;
  const size_t elements = (size_t)rcount * (size_t)ompi_comm_size(comm);
  if (!sum_suits(module, elements, dtype, op, &type) || !mca_coll_wiresum_is_joined(module, comm, true)) {
    return BELOW(reduce_scatter_block, sbuf, rbuf, rcount, dtype, op, comm);
  }
  Flight flight = kNoFlight;
  return finish(&flight, start_reduce_scatter_block(module, sbuf, rbuf, rcount, type, &flight));
}

int mca_coll_wiresum_bcast(void* buff, int count, struct ompi_datatype_t* dtype, int root,
                           struct ompi_communicator_t* comm, mca_coll_base_module_t* base) {
  Module* module = (Module*)base;
  const size_t bytes = bytes_of(count, dtype);
  if (!copy_suits(bytes, bytes) || !mca_coll_wiresum_is_joined(module, comm, true)) {
    return BELOW(bcast, buff, count, dtype, root, comm);
  }
  Flight flight = kNoFlight;
  return finish(&flight, start_bcast(module, buff, count, dtype, root, &flight));
}

int mca_coll_wiresum_allgather(const void* sbuf, int scount, struct ompi_datatype_t* sdtype, void* rbuf, int rcount,
                               struct ompi_datatype_t* rdtype, struct ompi_communicator_t* comm,
                               mca_coll_base_module_t* base) {
  Module* module = (Module*)base;
  const size_t bytes = bytes_of(rcount, rdtype) * (size_t)ompi_comm_size(comm);
  if (!copy_suits(bytes, bytes) || !mca_coll_wiresum_is_joined(module, comm, true)) {
    return BELOW(allgather, sbuf, scount, sdtype, rbuf, rcount, rdtype, comm);
  }
  Flight flight = kNoFlight;
  return finish(&flight, start_allgather(module, sbuf, scount, sdtype, rbuf, rcount, rdtype, &flight));
}

/* It does not make a communicator join: it is as quick below. */
int mca_coll_wiresum_barrier(struct ompi_communicator_t* comm, mca_coll_base_module_t* base) {
  Module* module = (Module*)base;
  if (!mca_coll_wiresum_is_joined(module, comm, false)) return BELOW(barrier, comm);
  Flight flight = kNoFlight;
  return finish(&flight, start_barrier(module, &flight));
}

/* ---- nonblocking ---- */

static int take_off(Flight* flight, int start_code, struct ompi_communicator_t* comm, ompi_request_t** request) {
  return start_code == OMPI_SUCCESS ? mca_coll_wiresum_request(flight, comm, request) : start_code;
}

int mca_coll_wiresum_iallreduce(const void* sbuf, void* rbuf, int count, struct ompi_datatype_t* dtype,
                                struct ompi_op_t* op, struct ompi_communicator_t* comm, ompi_request_t** request,
                                mca_coll_base_module_t* base) {
  Module* module = (Module*)base;
  wiresum_dtype type;
  if (!sum_suits(module, (size_t)count, dtype, op, &type) || !mca_coll_wiresum_is_joined(module, comm, false)) {
    return BELOW(iallreduce, sbuf, rbuf, count, dtype, op, comm, request);
  }
  Flight flight = kNoFlight;
  return take_off(&flight, start_allreduce(module, sbuf, rbuf, count, type, &flight), comm, request);
}

int mca_coll_wiresum_ireduce(const void* sbuf, void* rbuf, int count, struct ompi_datatype_t* dtype,
                             struct ompi_op_t* op, int root, struct ompi_communicator_t* comm, ompi_request_t** request,
                             mca_coll_base_module_t* base) {
  Module* module = (Module*)base;
  wiresum_dtype type;
  if (!sum_suits(module, (size_t)count, dtype, op, &type) || !mca_coll_wiresum_is_joined(module, comm, false)) {
    return BELOW(ireduce, sbuf, rbuf, count, dtype, op, root, comm, request);
  }
  Flight flight = kNoFlight;
  return take_off(&flight, start_reduce(module, sbuf, rbuf, count, type, root, &flight), comm, request);
}

int mca_coll_wiresum_ireduce_scatter_block(const void* sbuf, void* rbuf, int rcount, struct ompi_datatype_t* dtype,
                                           struct ompi_op_t* op, struct ompi_communicator_t* comm,
                                           ompi_request_t** request, mca_coll_base_module_t* base) {
  Module* module = (Module*)base;
  wiresum_dtype type;
  const size_t elements = (size_t)rcount * (size_t)ompi_comm_size(comm);
  if (!sum_suits(module, elements, dtype, op, &type) || !mca_coll_wiresum_is_joined(module, comm, false)) {
    return BELOW(ireduce_scatter_block, sbuf, rbuf, rcount, dtype, op, comm, request);
  }
  Flight flight = kNoFlight;
  return take_off(&flight, start_reduce_scatter_block(module, sbuf, rbuf, rcount, type, &flight), comm, request);
}

int mca_coll_wiresum_ibcast(void* buff, int count, struct ompi_datatype_t* dtype, int root,
                            struct ompi_communicator_t* comm, ompi_request_t** request, mca_coll_base_module_t* base) {
  Module* module = (Module*)base;
  const size_t bytes = bytes_of(count, dtype);
  if (!copy_suits(bytes, bytes) || !mca_coll_wiresum_is_joined(module, comm, false)) {
    return BELOW(ibcast, buff, count, dtype, root, comm, request);
  }
  Flight flight = kNoFlight;
  return take_off(&flight, start_bcast(module, buff, count, dtype, root, &flight), comm, request);
}

int mca_coll_wiresum_iallgather(const void* sbuf, int scount, struct ompi_datatype_t* sdtype, void* rbuf, int rcount,
                                struct ompi_datatype_t* rdtype, struct ompi_communicator_t* comm,
                                ompi_request_t** request, mca_coll_base_module_t* base) {
  Module* module = (Module*)base;
  const size_t bytes = bytes_of(rcount, rdtype) * (size_t)ompi_comm_size(comm);
  if (!copy_suits(bytes, bytes) || !mca_coll_wiresum_is_joined(module, comm, false)) {
    return BELOW(iallgather, sbuf, scount, sdtype, rbuf, rcount, rdtype, comm, request);
  }
  Flight flight = kNoFlight;
  return take_off(&flight, start_allgather(module, sbuf, scount, sdtype, rbuf, rcount, rdtype, &flight), comm, request);
}

int mca_coll_wiresum_ibarrier(struct ompi_communicator_t* comm, ompi_request_t** request,
                              mca_coll_base_module_t* base) {
  Module* module = (Module*)base;
  if (!mca_coll_wiresum_is_joined(module, comm, false)) return BELOW(ibarrier, comm, request);
  Flight flight = kNoFlight;
  return take_off(&flight, start_barrier(module, &flight), comm, request);
}
