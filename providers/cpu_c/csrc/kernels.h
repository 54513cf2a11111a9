// The kernels, written once over a vector struct. Which instruction set runs, and on how many threads, is left to
// dispatch.cpp; every function here does a range of rows on the calling thread.
#pragma once

#include "kernels/gate.h"
#include "kernels/norm.h"
#include "kernels/quant.h"
#include "kernels/rotary.h"
