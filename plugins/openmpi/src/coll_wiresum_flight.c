/* Waiting: a blocking collective lets MPI make progress meanwhile; a nonblocking one is a request, which MPI's progress
 * engine polls. */
#include "coll_wiresum_flight.h"

#include <stdlib.h>
#include <time.h>
/* Keeps out the operators' header, which includes one that libopenmpi-dev does not have. */
#define OMPI_OP_H
typedef struct ompi_op_t ompi_op_t;
#include "ompi/constants.h"
#include "ompi/mca/coll/base/coll_base_util.h"
#include "opal/class/opal_list.h"
#include "opal/runtime/opal_progress.h"
#include "opal/threads/mutex.h"
#include "opal/util/output.h"

/* How long MPI may go without progress while a caller waits: another process may need a message of ours before it calls
 * this collective. Not shorter, since waking costs the sending threads time. */
static const double kProgressPeriodS = 0.0005;
/* A caller that waits for a request spins in MPI's progress engine, on a core that the sending threads may need. So it
 * spins for the first time, and then sleeps for the second. A caller that computes between two calls does not sleep. */
static const double kSpinS = 50e-6, kSleepS = 50e-6, kComputesS = 10e-6;

typedef struct {
  ompi_coll_base_nbc_request_t super; /* MPI keeps the types of the call here */
  mca_coll_wiresum_flight_t flight;
} Request;

OBJ_CLASS_INSTANCE(Request, ompi_coll_base_nbc_request_t, NULL, NULL);

static opal_mutex_t mutex; /* of the list */
static opal_list_t in_flight;
static bool in_progress;
static double last_left, spins_since; /* of progress(), as now() */

static int progress(void);

void mca_coll_wiresum_complain(const char* what, int code) {
  opal_output(0, "coll:wiresum: %s: %s (%s)", what, wiresum_error_text(), wiresum_code_name(code));
}

int mca_coll_wiresum_land(mca_coll_wiresum_flight_t* flight, int code) {
  int result = MPI_SUCCESS;
  if (code != WIRESUM_OK) {
    mca_coll_wiresum_complain("a collective failed", code);
    result = MPI_ERR_OTHER;
  } else if (flight->user_type != NULL) {
    result = ompi_datatype_sndrcv(flight->packed, (int32_t)flight->packed_bytes, MPI_PACKED, flight->user,
                                  flight->user_count, flight->user_type);
  }
  mca_coll_wiresum_drop(flight);
  return result;
}

void mca_coll_wiresum_drop(mca_coll_wiresum_flight_t* flight) {
  if (flight->user_type != NULL) OBJ_RELEASE(flight->user_type);
  free(flight->packed);
  *flight = (mca_coll_wiresum_flight_t)MCA_COLL_WIRESUM_NO_FLIGHT;
}

void mca_coll_wiresum_requests_open(void) {
  OBJ_CONSTRUCT(&mutex, opal_mutex_t);
  OBJ_CONSTRUCT(&in_flight, opal_list_t);
  (void)opal_progress_register(progress);
}

void mca_coll_wiresum_requests_close(void) {
  (void)opal_progress_unregister(progress);
  OBJ_DESTRUCT(&in_flight);
  OBJ_DESTRUCT(&mutex);
}

int mca_coll_wiresum_wait(mca_coll_wiresum_flight_t* flight) {
  int code;
  while ((code = wiresum_wait(&flight->operation, kProgressPeriodS)) == WIRESUM_IN_FLIGHT) opal_progress();
  return mca_coll_wiresum_land(flight, code);
}

static int free_request(ompi_request_t** request) {
  if (!REQUEST_COMPLETE(*request)) return MPI_ERR_REQUEST; /* MPI forbids it for collectives */
  struct ompi_communicator_t* comm = (*request)->req_mpi_object.comm;
  OMPI_REQUEST_FINI(*request);
  OBJ_RELEASE(*request);
  OBJ_RELEASE(comm);
  *request = MPI_REQUEST_NULL;
  return OMPI_SUCCESS;
}

static int cancel_request(ompi_request_t* request, int flag) {
  (void)request;
  (void)flag;
  return MPI_ERR_REQUEST; /* MPI forbids it for collectives */
}

int mca_coll_wiresum_request(mca_coll_wiresum_flight_t* flight, struct ompi_communicator_t* comm,
                             ompi_request_t** request) {
  Request* made = OBJ_NEW(Request);
  if (made == NULL) {
    (void)mca_coll_wiresum_wait(flight);
    return OMPI_ERR_OUT_OF_RESOURCE;
  }
  ompi_request_t* base = &made->super.super;
  OMPI_REQUEST_INIT(base, false);
  base->req_state = OMPI_REQUEST_ACTIVE;
  base->req_type = OMPI_REQUEST_COLL;
  /* After MPI_Comm_free, too, pending collectives complete: the communicator and its session stay until then. */
  OBJ_RETAIN(comm);
  base->req_mpi_object.comm = comm;
  base->req_status._cancelled = 0;
  base->req_free = free_request;
  base->req_cancel = cancel_request;
  made->flight = *flight;
  opal_mutex_lock(&mutex);
  opal_list_append(&in_flight, &base->super.super);
  opal_mutex_unlock(&mutex);
  *request = base;
  return OMPI_SUCCESS;
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Whether the caller of progress() has spun for long enough to sleep now. */
static bool is_to_sleep(void) {
  const double time = now();
  if (time - last_left > kComputesS) spins_since = time;
  if (time - spins_since < kSpinS) return false;
  spins_since = time + kSleepS;
  return true;
}

/* Completes requests whose operations are done; other threads may add to the list meanwhile. */
static int progress(void) {
  int completed = 0;
  if (opal_list_is_empty(&in_flight)) return 0;
  opal_mutex_lock(&mutex);
  if (in_progress) { /* one thread at a time is enough */
    opal_mutex_unlock(&mutex);
    return 0;
  }
  in_progress = true;
  bool sleeps = is_to_sleep();
  Request *request, *next;
  OPAL_LIST_FOREACH_SAFE(request, next, &in_flight, Request) {
    int done = 0, code;
    if (sleeps) {
      opal_mutex_unlock(&mutex);
      code = wiresum_wait(&request->flight.operation, kSleepS);
      opal_mutex_lock(&mutex);
      done = code != WIRESUM_IN_FLIGHT;
      sleeps = false;
    } else {
      code = wiresum_test(&request->flight.operation, &done);
    }
    if (!done) continue;
    ompi_request_t* base = &request->super.super;
    opal_list_remove_item(&in_flight, &base->super.super);
    opal_mutex_unlock(&mutex);
    base->req_status.MPI_ERROR = mca_coll_wiresum_land(&request->flight, code);
    ompi_request_complete(base, true);
    ++completed;
    opal_mutex_lock(&mutex);
  }
  last_left = now();
  in_progress = false;
  opal_mutex_unlock(&mutex);
  return completed;
}
