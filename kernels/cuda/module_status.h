/* Messages inside the module. Its code reports failures with tide_fail, like all of tidepool; the message
 * becomes that of the calling thread in the process that opened the module, where callers read it. */
#ifndef TIDEPOOL_KERNELS_CUDA_MODULE_STATUS_H
#define TIDEPOOL_KERNELS_CUDA_MODULE_STATUS_H

#include "offload/module.h"

/* Call this before any other function of the module; `host` must live as long as the module. */
void tide_module_status_begin(const tide_module_host *host);

#endif
