/* The collectives: which go through the network, and how.
 *
 * The choice depends only on what is the same at all processes. For sums, MPI requires count, type and operator to be
 * the same everywhere; for copies only the number of bytes: a process may receive as one vector what another sends as a
 * thousand integers. Memory that is not one run of bytes is packed.
 */
#include "coll_wiresum_collectives.h"

#include <stdint.h>
#include <stdlib.h>

#include "coll_wiresum_flight.h"
#include "coll_wiresum_job.h"
#include "ompi/constants.h"
#include "opal/datatype/opal_datatype_internal.h"

typedef mca_coll_wiresum_module_t Module;
typedef mca_coll_wiresum_flight_t Flight;

static const Flight kNoFlight = MCA_COLL_WIRESUM_NO_FLIGHT;

/* ---- which suit ---- */

static bool sum_suits(size_t elements, const struct ompi_datatype_t* type, const struct ompi_op_t* op) {
  if (op != MPI_SUM || !ompi_datatype_is_predefined(type)) return false;
  const int id = type->super.id;
  return (id == OPAL_DATATYPE_INT4 || id == OPAL_DATATYPE_UINT4 ||
          (id == OPAL_DATATYPE_FLOAT4 && mca_coll_wiresum_parameters.float32)) &&
         elements > 0 && 4 * elements >= mca_coll_wiresum_parameters.min_bytes;
}

/* Sums modulo 2^32 are the same for signed and unsigned integers. */
static wiresum_dtype dtype_of(const struct ompi_datatype_t* type) {
  return type->super.id == OPAL_DATATYPE_FLOAT4 ? WIRESUM_FLOAT32 : WIRESUM_INT32;
}

/* Up to INT32_MAX, the limit of packing. */
static bool copy_suits(size_t bytes) {
  return bytes > 0 && bytes <= INT32_MAX && bytes >= mca_coll_wiresum_parameters.min_bytes;
}

static size_t bytes_of(int count, const struct ompi_datatype_t* type) {
  size_t size = 0;
  ompi_datatype_type_size(type, &size);
  return (size_t)count * size;
}

/* ---- memory that is not one run ---- */

/* Whether the bytes of `count` items are one run, and where it begins. A buffer says nothing by being NULL: that is
 * MPI_BOTTOM, from which types of absolute addresses count. */
static bool is_run(const void* buffer, int count, const struct ompi_datatype_t* type, void** run) {
  ptrdiff_t lower_bound, extent;
  if (!ompi_datatype_is_contiguous_memory_layout(type, count)) return false;
  ompi_datatype_get_true_extent(type, &lower_bound, &extent);
  *run = (void*)((intptr_t)buffer + lower_bound);
  return true;
}

/* Memory for a packed copy of the user's buffer; if `comes_back`, `land` unpacks the result from it. */
static char* packed_of(Flight* flight, size_t bytes, void* user, int count, struct ompi_datatype_t* type,
                       bool comes_back) {
  flight->packed = malloc(bytes);
  flight->packed_bytes = bytes;
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

/* The MPI code of a start whose libwiresum code is `code`. */
static int started(Flight* flight, int code) {
  if (code == WIRESUM_OK) return OMPI_SUCCESS;
  return mca_coll_wiresum_land(flight, code);
}

/* ---- starts ---- */

static int start_allreduce(Module* module, const void* sbuf, void* rbuf, int count, struct ompi_datatype_t* type,
                           Flight* flight) {
  const void* source = sbuf == MPI_IN_PLACE ? rbuf : sbuf;
  return started(flight, wiresum_all_reduce(module->session, source, rbuf, (size_t)count, dtype_of(type), WIRESUM_SUM,
                                            &flight->operation));
}

static int start_reduce(Module* module, const void* sbuf, void* rbuf, int count, struct ompi_datatype_t* type, int root,
                        Flight* flight) {
  const void* source = sbuf == MPI_IN_PLACE ? rbuf : sbuf;
  return started(flight, wiresum_reduce(module->session, source, rbuf, (size_t)count, dtype_of(type), WIRESUM_SUM, root,
                                        &flight->operation));
}

static int start_reduce_scatter_block(Module* module, const void* sbuf, void* rbuf, int rcount,
                                      struct ompi_datatype_t* type, Flight* flight) {
  const void* source = sbuf;
  void* sum = rbuf;
  /* In place, the sum would overwrite memory whose parts are still being read. */
  if (sbuf == MPI_IN_PLACE) {
    source = rbuf;
    sum = packed_of(flight, 4 * (size_t)rcount, rbuf, rcount, MPI_INT32_T, true);
    if (sum == NULL) return OMPI_ERR_OUT_OF_RESOURCE;
  }
  return started(flight, wiresum_reduce_scatter(module->session, source, sum, (size_t)rcount, dtype_of(type),
                                                WIRESUM_SUM, &flight->operation));
}

static int start_bcast(Module* module, void* buffer, int count, struct ompi_datatype_t* type, int root,
                       Flight* flight) {
  const size_t bytes = bytes_of(count, type);
  const bool is_root = wiresum_rank(module->session) == root;
  void* memory;
  if (!is_run(buffer, count, type, &memory)) {
    memory = packed_of(flight, bytes, buffer, count, type, !is_root);
    if (memory == NULL) return OMPI_ERR_OUT_OF_RESOURCE;
    if (is_root && pack(buffer, count, type, memory, bytes) != OMPI_SUCCESS) {
      mca_coll_wiresum_drop(flight);
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
  void* all;
  if (!is_run(rbuf, rcount * size, rtype, &all)) {
    all = packed_of(flight, (size_t)size * part, rbuf, rcount * size, rtype, true);
    if (all == NULL) return OMPI_ERR_OUT_OF_RESOURCE;
  }
  /* Our own part is copied to its place, unless the network can read it in place. */
  char* place = (char*)all + (size_t)rank * part;
  void* source = place;
  int code = OMPI_SUCCESS;
  if (sbuf == MPI_IN_PLACE) {
    if (flight->packed != NULL) {
      const void* mine = (void*)((intptr_t)rbuf + (intptr_t)rank * rcount * extent);
      code = pack(mine, rcount, rtype, place, part);
    }
  } else if (!is_run(sbuf, scount, stype, &source)) {
    code = pack(sbuf, scount, stype, place, part);
  }
  if (code != OMPI_SUCCESS) {
    mca_coll_wiresum_drop(flight);
    return code;
  }
  return started(flight, wiresum_all_gather(module->session, source, all, part, &flight->operation));
}

/* ---- the two forms of each ---- */

#define BELOW(name, ...) module->below.coll_##name(__VA_ARGS__, module->below.coll_##name##_module)
#define LIST(...) __VA_ARGS__

/* The blocking form, in which a communicator may join, and the nonblocking one. `parameters` and `arguments` are MPI's
 * up to the communicator, in parentheses; `start` uses `module` and `flight`, and returns an MPI code. */
#define COLLECTIVE(name, parameters, arguments, suits, start)                                                    \
  int mca_coll_wiresum_##name(LIST parameters, struct ompi_communicator_t* comm, mca_coll_base_module_t* base) { \
    Module* module = (Module*)base;                                                                              \
    if (!(suits) || !mca_coll_wiresum_carries(module, comm, true)) return BELOW(name, LIST arguments, comm);     \
    Flight flight = kNoFlight;                                                                                   \
    const int code = start;                                                                                      \
    return code == OMPI_SUCCESS ? mca_coll_wiresum_wait(&flight) : code;                                         \
  }                                                                                                              \
  int mca_coll_wiresum_i##name(LIST parameters, struct ompi_communicator_t* comm, ompi_request_t** request,      \
                               mca_coll_base_module_t* base) {                                                   \
    Module* module = (Module*)base;                                                                              \
    if (!(suits) || !mca_coll_wiresum_carries(module, comm, false)) {                                            \
      return BELOW(i##name, LIST arguments, comm, request);                                                      \
    }                                                                                                            \
    Flight flight = kNoFlight;                                                                                   \
    const int code = start;                                                                                      \
    return code == OMPI_SUCCESS ? mca_coll_wiresum_request(&flight, comm, request) : code;                       \
  }

COLLECTIVE(allreduce, (const void* sbuf, void* rbuf, int count, struct ompi_datatype_t* type, struct ompi_op_t* op),
           (sbuf, rbuf, count, type, op), sum_suits((size_t)count, type, op),
           start_allreduce(module, sbuf, rbuf, count, type, &flight))

COLLECTIVE(reduce,
           (const void* sbuf, void* rbuf, int count, struct ompi_datatype_t* type, struct ompi_op_t* op, int root),
           (sbuf, rbuf, count, type, op, root), sum_suits((size_t)count, type, op),
           start_reduce(module, sbuf, rbuf, count, type, root, &flight))

COLLECTIVE(reduce_scatter_block,
           (const void* sbuf, void* rbuf, int rcount, struct ompi_datatype_t* type, struct ompi_op_t* op),
           (sbuf, rbuf, rcount, type, op), sum_suits((size_t)rcount*(size_t)ompi_comm_size(comm), type, op),
           start_reduce_scatter_block(module, sbuf, rbuf, rcount, type, &flight))

COLLECTIVE(bcast, (void* buff, int count, struct ompi_datatype_t* type, int root), (buff, count, type, root),
           copy_suits(bytes_of(count, type)), start_bcast(module, buff, count, type, root, &flight))

COLLECTIVE(allgather,
           (const void* sbuf, int scount, struct ompi_datatype_t* stype, void* rbuf, int rcount,
            struct ompi_datatype_t* rtype),
           (sbuf, scount, stype, rbuf, rcount, rtype),
           copy_suits(bytes_of(rcount, rtype) * (size_t)ompi_comm_size(comm)),
           start_allgather(module, sbuf, scount, stype, rbuf, rcount, rtype, &flight))

/* A communicator does not join for a barrier, which is as fast below. */
int mca_coll_wiresum_barrier(struct ompi_communicator_t* comm, mca_coll_base_module_t* base) {
  Module* module = (Module*)base;
  if (!mca_coll_wiresum_is_joined(module)) return BELOW(barrier, comm);
  Flight flight = kNoFlight;
  const int code = started(&flight, wiresum_barrier(module->session, &flight.operation));
  return code == OMPI_SUCCESS ? mca_coll_wiresum_wait(&flight) : code;
}

int mca_coll_wiresum_ibarrier(struct ompi_communicator_t* comm, ompi_request_t** request,
                              mca_coll_base_module_t* base) {
  Module* module = (Module*)base;
  if (!mca_coll_wiresum_is_joined(module)) return BELOW(ibarrier, comm, request);
  Flight flight = kNoFlight;
  const int code = started(&flight, wiresum_barrier(module->session, &flight.operation));
  return code == OMPI_SUCCESS ? mca_coll_wiresum_request(&flight, comm, request) : code;
}
