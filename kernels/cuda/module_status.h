/* Messages inside the module. The module's code reports as all of tidepool does, with tide_fail; what it says becomes
 * the message of the calling thread in the process that opened the module, where its users read it. */
#ifndef TIDEPOOL_KERNELS_CUDA_MODULE_STATUS_H
#define TIDEPOOL_KERNELS_CUDA_MODULE_STATUS_H

#include "offload/module.h"

/* Before anything else; `host` stays as long as the module. */
void tide_module_status_begin(const tide_module_host *host);

#endif
