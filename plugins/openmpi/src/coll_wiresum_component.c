/* Open MPI's collectives through the network: an MCA component of the framework `coll`, over libwiresum.
 *
 * Theory of operation. A communicator that may use the network gets a module of ours, above the modules that would have
 * served it without us ("below"). A collective goes through the network if its kind, size, type and operator suit: MPI
 * requires these to be the same at all processes, so all decide alike. Everything else goes below.
 *
 * Each communicator is its own job, since only within one do processes call collectives in one order. To join takes as
 * long as many collectives, so the first few suitable ones go below, and a communicator that lives for a few never
 * joins. All processes count the same collectives. The communicator joins in the next suitable *blocking* one, which
 * all processes reach; nonblocking ones must not wait for others. By collectives below, the processes agree on the
 * job's name and settings, and then on whether all have joined; if one could not, all use what is below from then on.
 *
 * All processes of a communicator must have this component, with the same settings. So each publishes a digest of its
 * settings when it starts (by PMIx, with the addresses), and a communicator gets a module only if all digests agree.
 */
#include "ompi_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coll_wiresum_flight.h"
#include "coll_wiresum_job.h"
#include "ompi/constants.h"
#include "ompi/version.h"
#include "opal/mca/pmix/pmix.h"
#include "opal/util/output.h"

/* 64 KB: smaller collectives take only a few round trips, with or without the network. */
enum { MIN_BYTES_DEFAULT = 65536, JOIN_AFTER_DEFAULT = 8, PRIORITY_DEFAULT = 80, JOIN_TIMEOUT_DEFAULT_S = 60 };

#define DIGEST_KEY "wiresum.coll.digest"
/* The version of the rules that all processes must follow alike; change it whenever they change. */
#define RULES "2"

static int register_parameters(void);
static int open_component(void);
static int close_component(void);
static int init_query(bool enable_progress_threads, bool enable_mpi_threads);
static mca_coll_base_module_t* comm_query(struct ompi_communicator_t* comm, int* priority);

/* Of the settings that must be the same at all processes; 0: this process has no switch. */
static uint64_t own_digest;

OMPI_MODULE_DECLSPEC mca_coll_base_component_2_0_0_t mca_coll_wiresum_component = {
    .collm_version =
        {
            MCA_COLL_BASE_VERSION_2_0_0,
            .mca_component_name = "wiresum",
            MCA_BASE_MAKE_VERSION(component, OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION, OMPI_RELEASE_VERSION),
            .mca_open_component = open_component,
            .mca_close_component = close_component,
            .mca_register_component_params = register_parameters,
        },
    .collm_data = {MCA_BASE_METADATA_PARAM_NONE},
    .collm_init_query = init_query,
    .collm_comm_query = comm_query,
};

static void register_parameter(const char* name, const char* help, mca_base_var_type_t type, void* storage) {
  (void)mca_base_component_var_register(&mca_coll_wiresum_component.collm_version, name, help, type, NULL, 0, 0,
                                        OPAL_INFO_LVL_3, MCA_BASE_VAR_SCOPE_READONLY, storage);
}

static int register_parameters(void) {
  mca_coll_wiresum_parameters_t* c = &mca_coll_wiresum_parameters;
  c->priority = PRIORITY_DEFAULT;
  register_parameter("priority", "Priority of the wiresum component; a negative one turns it off",
                     MCA_BASE_VAR_TYPE_INT, &c->priority);
  c->min_bytes = MIN_BYTES_DEFAULT;
  register_parameter("min_bytes", "Collectives of fewer bytes do not go through the network",
                     MCA_BASE_VAR_TYPE_UNSIGNED_LONG, &c->min_bytes);
  c->switch_endpoint = NULL;
  register_parameter("switch",
                     "Control endpoint of the switch, host:port; by default WIRESUM_SWITCH; without either the "
                     "component is off",
                     MCA_BASE_VAR_TYPE_STRING, (void*)&c->switch_endpoint);
  c->float32 = true;
  register_parameter("float32", "Sum 32-bit floats in the network, too, rounded as WIRESUM_PRECISION says: docs/mpi.md",
                     MCA_BASE_VAR_TYPE_BOOL, &c->float32);
  c->join_after = JOIN_AFTER_DEFAULT;
  register_parameter(
      "join_after", "So many collectives that the network could carry are left to Open MPI before a communicator joins",
      MCA_BASE_VAR_TYPE_INT, &c->join_after);
  c->join_timeout_s = JOIN_TIMEOUT_DEFAULT_S;
  register_parameter("join_timeout",
                     "Seconds that a communicator may take to join; then it goes on without the network",
                     MCA_BASE_VAR_TYPE_INT, &c->join_timeout_s);
  c->verbose = 0;
  register_parameter("verbose", "1: report for each communicator what went through the network", MCA_BASE_VAR_TYPE_INT,
                     &c->verbose);
  return OMPI_SUCCESS;
}

/* FNV-1a, 64 bits. */
static uint64_t digest_of(const char* text) {
  uint64_t digest = 14695981039346656037u;
  for (; *text != '\0'; ++text) digest = (digest ^ (unsigned char)*text) * 1099511628211u;
  return digest == 0 ? 1 : digest;
}

/* Called before the processes exchange addresses, with which the digest travels. */
static int open_component(void) {
  mca_coll_wiresum_parameters_t* c = &mca_coll_wiresum_parameters;
  const char* endpoint = c->switch_endpoint;
  if (endpoint == NULL || *endpoint == '\0') endpoint = getenv("WIRESUM_SWITCH");
  own_digest = 0;
  if (c->priority < 0 || endpoint == NULL || *endpoint == '\0') return OMPI_ERR_NOT_AVAILABLE;
  char settings[512];
  const int length = snprintf(settings, sizeof settings, RULES " %d %lu %d %d %s", c->priority, c->min_bytes,
                              c->join_after, (int)c->float32, endpoint);
  if (length < 0 || (size_t)length >= sizeof settings) return OMPI_ERR_NOT_AVAILABLE;
  own_digest = digest_of(settings);
  int code;
  OPAL_MODEX_SEND_VALUE(code, OPAL_PMIX_GLOBAL, DIGEST_KEY, &own_digest, OPAL_UINT64);
  if (code != OPAL_SUCCESS) return OMPI_ERR_NOT_AVAILABLE;
  mca_coll_wiresum_requests_open();
  return OMPI_SUCCESS;
}

static int close_component(void) {
  if (own_digest != 0) mca_coll_wiresum_requests_close();
  return OMPI_SUCCESS;
}

static int init_query(bool enable_progress_threads, bool enable_mpi_threads) {
  (void)enable_progress_threads;
  (void)enable_mpi_threads;
  return OMPI_SUCCESS;
}

/* Whether all processes of the communicator have published the same digest. All get the same answer. It is no for
 * processes of other mpiruns, which have exchanged nothing with us, and if addresses are exchanged on demand. */
static bool are_alike(struct ompi_communicator_t* comm) {
  if (opal_pmix_base_async_modex) return false;
  for (int rank = 0; rank < ompi_comm_size(comm); ++rank) {
    opal_process_name_t name = ompi_group_get_proc_name(comm->c_local_group, rank);
    if (name.jobid != OPAL_PROC_MY_NAME.jobid) return false;
    uint64_t digest = 0;
    uint64_t* found = &digest;
    int code;
    OPAL_MODEX_RECV_VALUE_IMMEDIATE(code, DIGEST_KEY, &name, &found, OPAL_UINT64);
    if (code != OPAL_SUCCESS || digest != own_digest) return false;
  }
  return true;
}

/* How many processes a job may have depends on the switches. So those that are too many are refused when they join. */
static mca_coll_base_module_t* comm_query(struct ompi_communicator_t* comm, int* priority) {
  if (OMPI_COMM_IS_INTER(comm) || ompi_comm_size(comm) < 2 || !are_alike(comm)) return NULL;
  mca_coll_wiresum_module_t* module = OBJ_NEW(mca_coll_wiresum_module_t);
  if (module == NULL) return NULL;
  *priority = mca_coll_wiresum_parameters.priority;
  return &module->super;
}
