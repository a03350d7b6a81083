// The CPU's meaning of lab/barriers.cuh.
#pragma once
#error "the words of lab/barriers.cuh have no CPU meaning yet"
