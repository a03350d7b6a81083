// The CPU's meaning of lab/tma.cuh.
#pragma once
#error "the words of lab/tma.cuh have no CPU meaning yet"
