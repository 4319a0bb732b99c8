/* libtidepool: trains models larger than GPU memory. This header is all a C program needs. */
#ifndef TIDEPOOL_TIDEPOOL_H
#define TIDEPOOL_TIDEPOOL_H

#include "tidepool/comm.h"
#include "tidepool/pool.h"
#include "tidepool/status.h"
#include "tidepool/types.h"

#endif
