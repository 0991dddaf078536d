/* The class of a communicator's module. */
#ifndef MCA_COLL_WIRESUM_MODULE_H
#define MCA_COLL_WIRESUM_MODULE_H

#include "coll_wiresum_job.h"

OBJ_CLASS_DECLARATION(mca_coll_wiresum_module_t);

#endif
