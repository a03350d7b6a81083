// This file has all rungs of prefill/wgmma_basic.
#pragma once
#include "prefill/rungs/above.cuh"
#include "prefill/rungs/below.cuh"
